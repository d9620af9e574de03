"""DescribeLogDirs (35): what lies in which folder, and how large it is.

The tagged fields are ours: a client requests segments by one and receives them in another (`docs/formats/log.md`).
Brokers send none to other clients.
"""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct, tagged


@struct
class DescribableLogDirTopic:
    topic: str
    partitions: tuple[i32, ...]


@message(flexible_from=2)
class DescribeLogDirsRequest:
    """Null topics ask for all."""

    topics: tuple[DescribableLogDirTopic, ...] | None = None
    include_segments: bool = tagged(1000, since=2, default=False)


@struct
class DescribedSegment:
    base_offset: i64
    end_offset: i64
    size: i64
    first_timestamp: i64 = -1
    max_timestamp: i64 = -1


@struct
class DescribeLogDirsPartition:
    partition_index: i32
    partition_size: i64
    offset_lag: i64 = 0
    is_future_key: bool = False
    segments: tuple[DescribedSegment, ...] = tagged(1000, since=2, default=())


@struct
class DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]


@struct
class DescribeLogDirsResult:
    error_code: i16 = 0
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: i64 = since(4, default=-1)
    usable_bytes: i64 = since(4, default=-1)


@message(flexible_from=2)
class DescribeLogDirsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = since(3, default=0)
    results: tuple[DescribeLogDirsResult, ...]
