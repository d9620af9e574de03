"""ListOffsets (2): the offset at a time, or at one of the special times below."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, i64, message, since, struct

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6


@struct
class ListOffsetsPartition:
    partition_index: i32
    current_leader_epoch: i32 = since(4, default=-1)
    timestamp: i64


@struct
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@message(flexible_from=6)
class ListOffsetsRequest:
    replica_id: i32
    isolation_level: i8 = since(2, default=0)
    topics: tuple[ListOffsetsTopic, ...]
    timeout_ms: i32 = since(10, default=0)


@struct
class ListOffsetsPartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    timestamp: i64 = -1
    offset: i64 = -1
    leader_epoch: i32 = since(4, default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message(flexible_from=6)
class ListOffsetsResponse:
    throttle_time_ms: i32 = since(2, default=0)
    topics: tuple[ListOffsetsTopicResponse, ...]
