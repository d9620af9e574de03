"""SyncGroup (14): the leader of a classic group hands in the assignment, every member takes its own part (KIP-559)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, since, struct


@struct
class SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes


@message(flexible_from=4)
class SyncGroupRequest:
    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = since(3, default=None)
    protocol_type: str | None = since(5, default=None)
    protocol_name: str | None = since(5, default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...]


@message(flexible_from=4)
class SyncGroupResponse:
    throttle_time_ms: i32 = since(1, default=0)
    error_code: i16 = 0
    protocol_type: str | None = since(5, default=None)
    protocol_name: str | None = since(5, default=None)
    assignment: bytes = b""
