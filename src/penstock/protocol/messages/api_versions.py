"""ApiVersions (18): which requests, in which versions, the broker answers (KIP-35, KIP-511, KIP-584)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct, tagged


@message(flexible_from=3)
class ApiVersionsRequest:
    client_software_name: str = since(3, default="")
    client_software_version: str = since(3, default="")


@struct
class ApiVersion:
    api_key: i16
    min_version: i16
    max_version: i16


@struct
class SupportedFeatureKey:
    name: str
    min_version: i16
    max_version: i16


@struct
class FinalizedFeatureKey:
    name: str
    max_version_level: i16
    min_version_level: i16


@message(flexible_from=3)
class ApiVersionsResponse:
    error_code: i16 = 0
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: i32 = since(1, default=0)
    supported_features: tuple[SupportedFeatureKey, ...] = tagged(0, since=3, default=())
    finalized_features_epoch: i64 = tagged(1, since=3, default=-1)
    finalized_features: tuple[FinalizedFeatureKey, ...] = tagged(2, since=3, default=())
    zk_migration_ready: bool = tagged(3, since=3, default=False)
