"""DescribeTransactions (65): what a transactional id is at, and which partitions it touched (KIP-664)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, struct


@message(flexible_from=0)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]


@struct
class TopicData:
    topic: str
    partitions: tuple[i32, ...]


@struct
class TransactionState:
    error_code: i16 = 0
    transactional_id: str
    transaction_state: str = ""
    transaction_timeout_ms: i32 = 0
    transaction_start_time_ms: i64 = -1
    producer_id: i64 = -1
    producer_epoch: i16 = -1
    topics: tuple[TopicData, ...] = ()


@message(flexible_from=0)
class DescribeTransactionsResponse:
    throttle_time_ms: i32 = 0
    transaction_states: tuple[TransactionState, ...]
