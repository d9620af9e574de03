"""DescribeConfigs (32): settings, where each value comes from and what it overrides."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, since, struct


@struct
class DescribeConfigsResource:
    """Null keys ask for every setting of the resource."""

    resource_type: i8
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


@message(flexible_from=4)
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = since(3, default=False)


@struct
class DescribeConfigsSynonym:
    name: str
    value: str | None
    source: i8


@struct
class DescribeConfigsResourceResult:
    name: str
    value: str | None
    read_only: bool = False
    config_source: i8 = -1
    is_sensitive: bool = False
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: i8 = since(3, default=0)
    documentation: str | None = since(3, default=None)


@struct
class DescribeConfigsResult:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@message(flexible_from=4)
class DescribeConfigsResponse:
    throttle_time_ms: i32 = 0
    results: tuple[DescribeConfigsResult, ...]
