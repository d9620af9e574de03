"""OffsetDelete (47): forgets committed offsets of single partitions (KIP-496)."""

from __future__ import annotations

from penstock.protocol.schema import NEVER, i16, i32, message, struct


@struct
class OffsetDeleteRequestPartition:
    partition_index: i32


@struct
class OffsetDeleteRequestTopic:
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


@message(flexible_from=NEVER)
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


@struct
class OffsetDeleteResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@struct
class OffsetDeleteResponseTopic:
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]


@message(flexible_from=NEVER)
class OffsetDeleteResponse:
    error_code: i16 = 0
    throttle_time_ms: i32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
