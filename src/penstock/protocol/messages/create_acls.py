"""CreateAcls (30)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class AclCreation:
    resource_type: i8
    resource_name: str
    resource_pattern_type: i8 = 3
    principal: str
    host: str
    operation: i8
    permission_type: i8


@message(flexible_from=2)
class CreateAclsRequest:
    creations: tuple[AclCreation, ...]


@struct
class AclCreationResult:
    error_code: i16 = 0
    error_message: str | None = None


@message(flexible_from=2)
class CreateAclsResponse:
    throttle_time_ms: i32 = 0
    results: tuple[AclCreationResult, ...]
