"""OffsetFetch (9): the offsets that groups have committed (KIP-709, topic ids from version 10)."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.schema import i16, i32, i64, message, since, struct, until


@struct
class OffsetFetchRequestTopic:
    name: str
    partition_indexes: tuple[i32, ...]


@struct
class OffsetFetchRequestTopics:
    name: str = until(9, default="")
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    partition_indexes: tuple[i32, ...]


@struct
class OffsetFetchRequestGroup:
    """Null topics ask for all."""

    group_id: str
    member_id: str | None = since(9, default=None)
    member_epoch: i32 = since(9, default=-1)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = None


@message(flexible_from=6)
class OffsetFetchRequest:
    """One group until version 7, with null topics for all from version 2; many groups from version 8."""

    group_id: str = until(7, default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = since(0, until=7, nullable_since=2, default=())
    groups: tuple[OffsetFetchRequestGroup, ...] = since(8, default=())
    require_stable: bool = since(7, default=False)


@struct
class OffsetFetchResponsePartition:
    """An offset of -1 says that none was committed."""

    partition_index: i32
    committed_offset: i64 = -1
    committed_leader_epoch: i32 = since(5, default=-1)
    metadata: str | None = ""
    error_code: i16 = 0


@struct
class OffsetFetchResponseTopic:
    name: str
    partitions: tuple[OffsetFetchResponsePartition, ...]


@struct
class OffsetFetchResponseTopics:
    name: str = until(9, default="")
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    partitions: tuple[OffsetFetchResponsePartition, ...]


@struct
class OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    error_code: i16 = 0


@message(flexible_from=6)
class OffsetFetchResponse:
    """`topics` and `error_code` of the one group until version 7, `groups` from version 8."""

    throttle_time_ms: i32 = since(3, default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = until(7, default=())
    error_code: i16 = since(2, until=7, default=0)
    groups: tuple[OffsetFetchResponseGroup, ...] = since(8, default=())
