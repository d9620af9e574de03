"""LeaveGroup (13): members leave a classic group, or are removed by an administrator (KIP-345, KIP-800)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, since, struct, until


@struct
class MemberIdentity:
    member_id: str
    group_instance_id: str | None = None
    reason: str | None = since(5, default=None)


@message(flexible_from=4)
class LeaveGroupRequest:
    """One member until version 2, many from version 3."""

    group_id: str
    member_id: str = until(2, default="")
    members: tuple[MemberIdentity, ...] = since(3, default=())


@struct
class MemberResponse:
    member_id: str
    group_instance_id: str | None = None
    error_code: i16 = 0


@message(flexible_from=4)
class LeaveGroupResponse:
    throttle_time_ms: i32 = since(1, default=0)
    error_code: i16 = 0
    members: tuple[MemberResponse, ...] = since(3, default=())
