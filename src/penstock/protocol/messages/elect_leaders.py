"""ElectLeaders (43): asks for preferred leaders, or for any leader at all (KIP-183, KIP-460)."""

from __future__ import annotations

from penstock.protocol.schema import i8, i16, i32, message, since, struct

PREFERRED = 0
UNCLEAN = 1


@struct
class TopicPartitions:
    topic: str
    partitions: tuple[i32, ...]


@message(flexible_from=2)
class ElectLeadersRequest:
    election_type: i8 = since(1, default=PREFERRED)
    # None: those of all topics.
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    timeout_ms: i32 = 60_000


@struct
class PartitionResult:
    partition_id: i32
    error_code: i16 = 0
    error_message: str | None = None


@struct
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[PartitionResult, ...]


@message(flexible_from=2)
class ElectLeadersResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = since(1, default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()
