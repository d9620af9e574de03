"""The records of `__consumer_offsets`: committed offsets, classic groups, and the groups of KIP-848.

The version of a key says what the record is; see `GROUP_RECORDS`. A record without a value says that what its key names
is gone. Keys are never flexible. Tagged fields that newer Kafka versions add to values are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from penstock.protocol.schema import NEVER, i8, i32, i64, message, since, struct, tagged
from penstock.protocol.versioned import Versioned

K = TypeVar("K")
V = TypeVar("V")


@message(flexible_from=NEVER)
class OffsetCommitKey:
    group: str
    topic: str
    partition: i32


@message(flexible_from=4)
class OffsetCommitValue:
    """`expire_timestamp` is from clients that requested a retention time of their own."""

    offset: i64
    leader_epoch: i32 = since(3, default=-1)
    metadata: str
    commit_timestamp: i64
    expire_timestamp: i64 = since(1, until=1, default=-1)


@message(flexible_from=NEVER)
class GroupMetadataKey:
    group: str


@struct
class MemberMetadata:
    """Both timeouts are in milliseconds."""

    member_id: str
    group_instance_id: str | None = since(3, default=None)
    client_id: str
    client_host: str
    rebalance_timeout: i32 = since(1, default=-1)
    session_timeout: i32
    subscription: bytes
    assignment: bytes


@message(flexible_from=4)
class GroupMetadataValue:
    """The tagged fields are not Kafka's, which skips them."""

    protocol_type: str
    generation: i32
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: i64 = since(2, default=-1)
    members: tuple[MemberMetadata, ...]
    withheld_topics: tuple[str, ...] = tagged(1000, since=4, default=())
    is_reset: bool = tagged(1001, since=4, default=False)


@message(flexible_from=NEVER)
class ConsumerGroupMetadataKey:
    group_id: str


@message(flexible_from=0)
class ConsumerGroupMetadataValue:
    """`metadata_hash` replaces ConsumerGroupPartitionMetadata (KIP-1101)."""

    epoch: i32
    metadata_hash: i64 = tagged(0, since=0, default=0)


@message(flexible_from=NEVER)
class ConsumerGroupPartitionMetadataKey:
    group_id: str


@struct
class PartitionMetadata:
    partition: i32
    racks: tuple[str, ...]


@struct
class TopicMetadata:
    topic_id: UUID
    topic_name: str
    num_partitions: i32
    partition_metadata: tuple[PartitionMetadata, ...] = ()


@message(flexible_from=0)
class ConsumerGroupPartitionMetadataValue:
    topics: tuple[TopicMetadata, ...]


@message(flexible_from=NEVER)
class ConsumerGroupMemberMetadataKey:
    group_id: str
    member_id: str


@struct
class ClassicProtocol:
    name: str
    metadata: bytes


@struct
class ClassicMemberMetadata:
    session_timeout_ms: i32
    supported_protocols: tuple[ClassicProtocol, ...]


@message(flexible_from=0)
class ConsumerGroupMemberMetadataValue:
    """`classic_member_metadata` is that of a member who speaks the classic protocol in a group of the new kind."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: i32 = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = tagged(0, since=0, default=None)


@message(flexible_from=NEVER)
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str


@message(flexible_from=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: i32


@message(flexible_from=NEVER)
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str
    member_id: str


@struct
class TopicPartitions:
    topic_id: UUID
    partitions: tuple[i32, ...]


@message(flexible_from=0)
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[TopicPartitions, ...]


@message(flexible_from=NEVER)
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str
    member_id: str


# The states of a member, as `ConsumerGroupCurrentMemberAssignmentValue.state` numbers them.
STABLE = 0
UNREVOKED_PARTITIONS = 1
UNRELEASED_PARTITIONS = 2


@message(flexible_from=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: i32
    previous_member_epoch: i32
    state: i8
    assigned_partitions: tuple[TopicPartitions, ...] = ()
    partitions_pending_revocation: tuple[TopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupRecord(Generic[K, V]):
    """One kind of record."""

    key: Versioned[K]
    value: Versioned[V]


def _record(kind: int, key: type[K], value: type[V]) -> GroupRecord[K, V]:
    return GroupRecord(Versioned(key, kind, kind, kind), Versioned(value, 0, 0, 0))


# Kafka 4 writes offsets and classic groups in version 3 of their values, and version 1 for an offset that expires.
OFFSET_COMMIT = GroupRecord(
    Versioned(OffsetCommitKey, oldest=0, newest=1, written=1),
    Versioned(OffsetCommitValue, oldest=0, newest=4, written=3),
)
GROUP_METADATA = GroupRecord(
    Versioned(GroupMetadataKey, oldest=2, newest=2, written=2),
    Versioned(GroupMetadataValue, oldest=0, newest=4, written=3),
)
CONSUMER_GROUP_METADATA = _record(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue)
CONSUMER_GROUP_PARTITION_METADATA = _record(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue)
CONSUMER_GROUP_MEMBER_METADATA = _record(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue)
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = _record(
    6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue
)
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = _record(
    7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue
)
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = _record(
    8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue
)

# By the version of the key.
GROUP_RECORDS: dict[int, GroupRecord[Any, Any]] = {
    version: record
    for record in (
        OFFSET_COMMIT,
        GROUP_METADATA,
        CONSUMER_GROUP_METADATA,
        CONSUMER_GROUP_PARTITION_METADATA,
        CONSUMER_GROUP_MEMBER_METADATA,
        CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER,
        CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
    )
    for version in range(record.key.oldest, record.key.newest + 1)
}
