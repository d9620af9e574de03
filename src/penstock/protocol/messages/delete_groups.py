"""DeleteGroups (42)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, struct


@message(flexible_from=2)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


@struct
class DeletableGroupResult:
    group_id: str
    error_code: i16 = 0


@message(flexible_from=2)
class DeleteGroupsResponse:
    throttle_time_ms: i32 = 0
    results: tuple[DeletableGroupResult, ...]
