"""AddPartitionsToTxn (24): a transaction is going to write to these partitions (KIP-98, KIP-890)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct, until


@struct
class AddPartitionsToTxnTopic:
    name: str
    partitions: tuple[i32, ...]


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    verify_only: bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...]


@message(flexible_from=3)
class AddPartitionsToTxnRequest:
    """One transaction until version 3, which producers send; many from version 4, which brokers send."""

    transactions: tuple[AddPartitionsToTxnTransaction, ...] = since(4, default=())
    v3_and_below_transactional_id: str = until(3, default="")
    v3_and_below_producer_id: i64 = until(3, default=-1)
    v3_and_below_producer_epoch: i16 = until(3, default=-1)
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = until(3, default=())


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: i32
    partition_error_code: i16 = 0


@struct
class AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...]


@struct
class AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]


@message(flexible_from=3)
class AddPartitionsToTxnResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = since(4, default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...] = since(4, default=())
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = until(3, default=())
