"""DescribeGroups (15): the state and the members of classic groups (KIP-1043 for the message of version 6)."""

from __future__ import annotations

from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import i16, i32, message, since, struct


@message(flexible_from=5)
class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool = since(3, default=False)


@struct
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None = since(4, default=None)
    client_id: str
    client_host: str
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@struct
class DescribedGroup:
    error_code: i16 = 0
    error_message: str | None = since(6, default=None)
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: i32 = since(3, default=OPERATIONS_NOT_ASKED)


@message(flexible_from=5)
class DescribeGroupsResponse:
    throttle_time_ms: i32 = since(1, default=0)
    groups: tuple[DescribedGroup, ...]
