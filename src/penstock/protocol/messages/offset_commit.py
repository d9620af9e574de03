"""OffsetCommit (8): how far a group has come (KIP-848 for version 9, topic ids from version 10)."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.schema import i16, i32, i64, message, since, struct, until


@struct
class OffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = since(6, default=-1)
    committed_metadata: str | None = None


@struct
class OffsetCommitRequestTopic:
    name: str = until(9, default="")
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    partitions: tuple[OffsetCommitRequestPartition, ...]


@message(flexible_from=8)
class OffsetCommitRequest:
    """A generation of -1 with an empty member id is a commit from outside the group."""

    group_id: str
    generation_id_or_member_epoch: i32 = -1
    member_id: str = ""
    group_instance_id: str | None = since(7, default=None)
    retention_time_ms: i64 = since(2, until=4, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...]


@struct
class OffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@struct
class OffsetCommitResponseTopic:
    name: str = until(9, default="")
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    partitions: tuple[OffsetCommitResponsePartition, ...]


@message(flexible_from=8)
class OffsetCommitResponse:
    throttle_time_ms: i32 = since(3, default=0)
    topics: tuple[OffsetCommitResponseTopic, ...]
