"""AlterConfigs (33): replaces all settings of a resource at once."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class AlterableConfig:
    name: str
    value: str | None


@struct
class AlterConfigsResource:
    resource_type: i8
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@message(flexible_from=2)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@struct
class AlterConfigsResourceResponse:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str


@message(flexible_from=2)
class AlterConfigsResponse:
    throttle_time_ms: i32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
