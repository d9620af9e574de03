"""ListGroups (16): the groups that this broker coordinates, by state and type (KIP-518, KIP-848)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, since, struct


@message(flexible_from=3)
class ListGroupsRequest:
    """An empty filter lets every group pass."""

    states_filter: tuple[str, ...] = since(4, default=())
    types_filter: tuple[str, ...] = since(5, default=())


@struct
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str = since(4, default="")
    group_type: str = since(5, default="")


@message(flexible_from=3)
class ListGroupsResponse:
    throttle_time_ms: i32 = since(1, default=0)
    error_code: i16 = 0
    groups: tuple[ListedGroup, ...] = ()
