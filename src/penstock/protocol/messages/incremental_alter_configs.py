"""IncrementalAlterConfigs (44): sets, deletes, appends to and subtracts from single settings (KIP-339)."""

from __future__ import annotations

from penstock.protocol.messages.alter_configs import AlterConfigsResourceResponse
from penstock.protocol.schema import i8, i32, message, struct

SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3


@struct
class IncrementalConfig:
    name: str
    config_operation: i8
    value: str | None


@struct
class IncrementalConfigsResource:
    resource_type: i8
    resource_name: str
    configs: tuple[IncrementalConfig, ...]


@message(flexible_from=1)
class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalConfigsResource, ...]
    validate_only: bool = False


@message(flexible_from=1)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: i32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
