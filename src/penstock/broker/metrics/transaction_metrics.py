"""Transactions on /metrics: those that this broker coordinates. A broker without any shows zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker.coordinators import OnDemand
from penstock.broker.metrics.catalogue import (
    TRANSACTION_MARKERS_PENDING,
    TRANSACTIONAL_IDS,
    TRANSACTIONS_ABORTED,
    TRANSACTIONS_COMMITTED,
    TRANSACTIONS_OLDEST_OPEN_SECONDS,
    TRANSACTIONS_OPEN,
    TRANSACTIONS_TIMED_OUT,
)
from penstock.broker.metrics.registry import Metrics, Sample

if TYPE_CHECKING:
    from penstock.transactions.coordinator import TransactionCoordinator


def register_transactions(metrics: Metrics, transactions: OnDemand[TransactionCoordinator]) -> None:
    metrics.register_source(
        (
            TRANSACTIONS_COMMITTED,
            TRANSACTIONS_ABORTED,
            TRANSACTIONS_TIMED_OUT,
            TRANSACTION_MARKERS_PENDING,
            TRANSACTIONAL_IDS,
            TRANSACTIONS_OPEN,
            TRANSACTIONS_OLDEST_OPEN_SECONDS,
        ),
        lambda: _read(transactions.made),
    )


def _read(made: TransactionCoordinator | None) -> Iterator[Sample | None]:
    committed = aborted = timed_out = pending = ids = ongoing = 0
    oldest_s = 0.0
    if made is not None:
        counts = made.counts
        committed, aborted, timed_out = counts.committed, counts.aborted, counts.timed_out
        pending = counts.markers_pending
        for shard in list(made.shards()):
            ids += len(shard.states)
            ongoing += shard.ongoing
            began_ms = shard.oldest_ms()
            if began_ms is not None:
                oldest_s = max(oldest_s, (made.now_ms() - began_ms) / 1000)
            yield None
    yield TRANSACTIONS_COMMITTED, (), committed
    yield TRANSACTIONS_ABORTED, (), aborted
    yield TRANSACTIONS_TIMED_OUT, (), timed_out
    yield TRANSACTION_MARKERS_PENDING, (), pending
    yield TRANSACTIONAL_IDS, (), ids
    yield TRANSACTIONS_OPEN, (), ongoing
    yield TRANSACTIONS_OLDEST_OPEN_SECONDS, (), oldest_s
