"""DescribeAcls (29). A null in a filter stands for anything."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@message(flexible_from=2)
class DescribeAclsRequest:
    resource_type_filter: i8
    resource_name_filter: str | None
    pattern_type_filter: i8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: i8
    permission_type: i8


@struct
class AclDescription:
    principal: str
    host: str
    operation: i8
    permission_type: i8


@struct
class DescribeAclsResource:
    resource_type: i8
    resource_name: str
    pattern_type: i8 = 3
    acls: tuple[AclDescription, ...]


@message(flexible_from=2)
class DescribeAclsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    resources: tuple[DescribeAclsResource, ...] = ()
