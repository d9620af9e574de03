"""DeleteRecords (21): trims logs from the front."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, struct

# As an offset to delete up to: everything below the high watermark.
UP_TO_HIGH_WATERMARK = -1


@struct
class DeleteRecordsPartition:
    partition_index: i32
    offset: i64


@struct
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@message(flexible_from=2)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: i32


@struct
class DeleteRecordsPartitionResult:
    partition_index: i32
    low_watermark: i64 = -1
    error_code: i16 = 0


@struct
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]


@message(flexible_from=2)
class DeleteRecordsResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
