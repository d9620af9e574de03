"""Heartbeat (12): a member of a classic group is alive, and learns of a rebalance."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, since


@message(flexible_from=4)
class HeartbeatRequest:
    group_id: str
    generation_id: i32
    member_id: str
    group_instance_id: str | None = since(3, default=None)


@message(flexible_from=4)
class HeartbeatResponse:
    throttle_time_ms: i32 = since(1, default=0)
    error_code: i16 = 0
