"""CreatePartitions (37)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: tuple[i32, ...]


@struct
class CreatePartitionsTopic:
    """`count` is the wanted total, not the increase."""

    name: str
    count: i32
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


@message(flexible_from=2)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: i32
    validate_only: bool = False


@struct
class CreatePartitionsTopicResult:
    name: str
    error_code: i16 = 0
    error_message: str | None = None


@message(flexible_from=2)
class CreatePartitionsResponse:
    throttle_time_ms: i32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]
