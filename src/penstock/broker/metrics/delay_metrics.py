"""Delayed messages on /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from penstock.broker.metrics.catalogue import (
    CLOCK_SET_AHEAD,
    CLOCK_SET_BACK,
    COMPANION_SIZE_BYTES,
    DELAYED_DAMAGED,
    DELAYED_DELIVERED,
    DELAYED_LATENESS_SECONDS,
    DELAYED_MARK_RESETS,
    DELAYED_OVERDUE_SECONDS,
    DELAYED_PENDING,
)
from penstock.broker.metrics.registry import Metrics, Sample
from penstock.delay.delays import Delays


def register_delays(metrics: Metrics, delays: Delays, partition_series: int) -> None:
    """At most `partition_series` partitions have series of their own."""
    metrics.register(DELAYED_DELIVERED, lambda: delays.delivered)
    metrics.register(DELAYED_DAMAGED, lambda: delays.damaged)
    metrics.register(DELAYED_MARK_RESETS, lambda: delays.resets.count)
    metrics.register(CLOCK_SET_AHEAD, lambda: delays.clock_watch.ahead)
    metrics.register(CLOCK_SET_BACK, lambda: delays.clock_watch.back)
    metrics.register_histogram(DELAYED_LATENESS_SECONDS, delays.lateness)
    metrics.register_source((DELAYED_PENDING, COMPANION_SIZE_BYTES), lambda: _partitions(delays, partition_series))
    metrics.register_source((DELAYED_OVERDUE_SECONDS,), lambda: _overdue(delays))


def _partitions(delays: Delays, limit: int) -> Iterator[Sample]:
    for delivery in islice(delays.deliveries(), limit):
        topic, index = delivery.partition.topic_partition
        labels = (topic, str(index))
        if delivery.is_ready:
            yield DELAYED_PENDING, labels, delivery.timers.index.pending
        yield COMPANION_SIZE_BYTES, labels, delivery.timers.companion.size_bytes


def _overdue(delays: Delays) -> Iterator[Sample | None]:
    oldest_ms = 0
    for delivery in delays.deliveries():
        oldest_ms = max(oldest_ms, delivery.overdue_ms)
        yield None
    yield DELAYED_OVERDUE_SECONDS, (), oldest_ms / 1000
