"""DescribeProducers (61): the producers that a partition knows, and who holds a transaction open (KIP-664)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, struct


@struct
class TopicRequest:
    name: str
    partition_indexes: tuple[i32, ...]


@message(flexible_from=0)
class DescribeProducersRequest:
    topics: tuple[TopicRequest, ...]


@struct
class ProducerState:
    """A `current_txn_start_offset` of -1 says that no transaction is open."""

    producer_id: i64
    producer_epoch: i32
    last_sequence: i32 = -1
    last_timestamp: i64 = -1
    coordinator_epoch: i32
    current_txn_start_offset: i64 = -1


@struct
class PartitionResponse:
    partition_index: i32
    error_code: i16 = 0
    error_message: str | None = None
    active_producers: tuple[ProducerState, ...] = ()


@struct
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...]


@message(flexible_from=0)
class DescribeProducersResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[TopicResponse, ...]
