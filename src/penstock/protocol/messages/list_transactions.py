"""ListTransactions (66): the transactions that this broker coordinates (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct


@message(flexible_from=0)
class ListTransactionsRequest:
    """Empty filters, a negative duration and a null pattern let every transaction pass."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[i64, ...] = ()
    duration_filter: i64 = since(1, default=-1)
    transactional_id_pattern: str | None = since(2, default=None)


@struct
class TransactionState:
    transactional_id: str
    producer_id: i64
    transaction_state: str


@message(flexible_from=0)
class ListTransactionsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[TransactionState, ...] = ()
