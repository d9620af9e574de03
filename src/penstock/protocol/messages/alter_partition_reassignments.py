"""AlterPartitionReassignments (45): moves the replicas of partitions, or gives a move up (KIP-455, KIP-860)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, since, struct


@struct
class ReassignablePartition:
    partition_index: i32
    # None: gives up the move that is under way.
    replicas: tuple[i32, ...] | None = None


@struct
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...]


@message(flexible_from=0)
class AlterPartitionReassignmentsRequest:
    timeout_ms: i32 = 60_000
    allow_replication_factor_change: bool = since(1, default=True)
    topics: tuple[ReassignableTopic, ...]


@struct
class ReassignablePartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    error_message: str | None = None


@struct
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


@message(flexible_from=0)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: i32 = 0
    allow_replication_factor_change: bool = since(1, default=True)
    error_code: i16 = 0
    error_message: str | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()
