"""ConsumerGroupDescribe (69): the state and the members of groups whose broker assigns (KIP-848, KIP-1099)."""

from __future__ import annotations

from uuid import UUID

from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import i8, i16, i32, message, since, struct

# As a member type: which protocol the member speaks.
UNKNOWN_MEMBER_TYPE = -1
CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


@message(flexible_from=0)
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False


@struct
class TopicPartitions:
    topic_id: UUID
    topic_name: str
    partitions: tuple[i32, ...]


@struct
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@struct
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: i32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: Assignment
    target_assignment: Assignment
    member_type: i8 = since(1, default=UNKNOWN_MEMBER_TYPE)


@struct
class DescribedGroup:
    error_code: i16 = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: i32 = 0
    assignment_epoch: i32 = 0
    assignor_name: str = ""
    members: tuple[Member, ...] = ()
    authorized_operations: i32 = OPERATIONS_NOT_ASKED


@message(flexible_from=0)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: i32 = 0
    groups: tuple[DescribedGroup, ...]
