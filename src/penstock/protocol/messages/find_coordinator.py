"""FindCoordinator (10): which broker answers for a group or a transactional id (KIP-699)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, since, struct, until

GROUP = 0
TRANSACTION = 1
SHARE = 2


@message(flexible_from=3)
class FindCoordinatorRequest:
    """One key until version 3, many from version 4."""

    key: str = until(3, default="")
    key_type: i8 = since(1, default=GROUP)
    coordinator_keys: tuple[str, ...] = since(4, default=())


@struct
class Coordinator:
    key: str
    node_id: i32
    host: str
    port: i32
    error_code: i16 = 0
    error_message: str | None = None


@message(flexible_from=3)
class FindCoordinatorResponse:
    """The fields of the one coordinator until version 3, `coordinators` from version 4."""

    throttle_time_ms: i32 = since(1, default=0)
    error_code: i16 = until(3, default=0)
    error_message: str | None = since(1, until=3, default=None)
    node_id: i32 = until(3, default=-1)
    host: str = until(3, default="")
    port: i32 = until(3, default=-1)
    coordinators: tuple[Coordinator, ...] = since(4, default=())
