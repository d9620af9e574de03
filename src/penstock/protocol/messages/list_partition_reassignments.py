"""ListPartitionReassignments (46): which partitions move, and where to (KIP-455)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, message, struct


@struct
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: tuple[i32, ...]


@message(flexible_from=0)
class ListPartitionReassignmentsRequest:
    timeout_ms: i32 = 60_000
    # None: those of all topics.
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = None


@struct
class OngoingPartitionReassignment:
    partition_index: i32
    replicas: tuple[i32, ...]
    adding_replicas: tuple[i32, ...]
    removing_replicas: tuple[i32, ...]


@struct
class OngoingTopicReassignment:
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@message(flexible_from=0)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()
