"""ListConfigResources (74): what has settings (KIP-1142); version 0 was ListClientMetricsResources."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, since, struct


@message(flexible_from=0)
class ListConfigResourcesRequest:
    """No types ask for all of them."""

    resource_types: tuple[i8, ...] = since(1, default=())


@struct
class ConfigResource:
    resource_name: str
    resource_type: i8 = since(1, default=16)


@message(flexible_from=0)
class ListConfigResourcesResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    config_resources: tuple[ConfigResource, ...] = ()
