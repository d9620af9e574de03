"""JoinGroup (11): a member enters the next generation of a classic group (KIP-345, KIP-394, KIP-559, KIP-800)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, nullable_since, since, struct


@struct
class JoinGroupRequestProtocol:
    name: str
    metadata: bytes


@message(flexible_from=6)
class JoinGroupRequest:
    """Version 0 has no rebalance timeout: the session timeout stands for it."""

    group_id: str
    session_timeout_ms: i32
    rebalance_timeout_ms: i32 = since(1, default=-1)
    member_id: str
    group_instance_id: str | None = since(5, default=None)
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = since(8, default=None)


@struct
class JoinGroupResponseMember:
    member_id: str
    group_instance_id: str | None = since(5, default=None)
    metadata: bytes


@message(flexible_from=6)
class JoinGroupResponse:
    """Only the leader is sent the members."""

    throttle_time_ms: i32 = since(2, default=0)
    error_code: i16 = 0
    generation_id: i32 = -1
    protocol_type: str | None = since(7, default=None)
    protocol_name: str | None = nullable_since(7, default="")
    leader: str = ""
    skip_assignment: bool = since(9, default=False)
    member_id: str = ""
    members: tuple[JoinGroupResponseMember, ...] = ()
