"""DeleteAcls (31). A null in a filter stands for anything."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, struct


@struct
class DeleteAclsFilter:
    resource_type_filter: i8
    resource_name_filter: str | None
    pattern_type_filter: i8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: i8
    permission_type: i8


@message(flexible_from=2)
class DeleteAclsRequest:
    filters: tuple[DeleteAclsFilter, ...]


@struct
class DeleteAclsMatchingAcl:
    error_code: i16 = 0
    error_message: str | None = None
    resource_type: i8
    resource_name: str
    pattern_type: i8 = 3
    principal: str
    host: str
    operation: i8
    permission_type: i8


@struct
class DeleteAclsFilterResult:
    error_code: i16 = 0
    error_message: str | None = None
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = ()


@message(flexible_from=2)
class DeleteAclsResponse:
    throttle_time_ms: i32 = 0
    filter_results: tuple[DeleteAclsFilterResult, ...]
