"""OffsetForLeaderEpoch (23): where a leader epoch ended, which tells a reader whether its log diverged."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct


@struct
class OffsetForLeaderPartition:
    partition: i32
    current_leader_epoch: i32 = -1
    leader_epoch: i32


@struct
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]


@message(flexible_from=4)
class OffsetForLeaderEpochRequest:
    replica_id: i32 = since(3, default=-2)
    topics: tuple[OffsetForLeaderTopic, ...]


@struct
class EpochEndOffset:
    error_code: i16 = 0
    partition: i32
    leader_epoch: i32 = -1
    end_offset: i64 = -1


@struct
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]


@message(flexible_from=4)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[OffsetForLeaderTopicResult, ...]
