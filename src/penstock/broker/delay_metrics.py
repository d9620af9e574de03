"""Delayed messages on /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.metrics import LabelledValue, Metrics
from penstock.delay.delays import Delays


def register_delays(metrics: Metrics, delays: Delays) -> None:
    metrics.register_counter("penstock_delayed_delivered", "Delayed messages delivered.", lambda: delays.delivered)
    metrics.register_counter(
        "penstock_delayed_damaged", "Delayed messages not delivered because they were damaged.", lambda: delays.damaged
    )
    metrics.register_histogram("penstock_delayed_lateness_seconds", "Time from due to delivered.", delays.lateness)
    metrics.register_gauges(
        "penstock_delayed_pending",
        "Delayed messages that wait in a partition that is led here.",
        ("topic", "partition"),
        lambda: _pending(delays),
    )
    metrics.register_gauges(
        "penstock_companion_size_bytes",
        "Bytes of a partition's companion log, in which delayed messages wait.",
        ("topic", "partition"),
        lambda: _sizes(delays),
    )


def _pending(delays: Delays) -> Iterator[LabelledValue]:
    for keeper in delays.keepers():
        if keeper.is_ready:
            topic, index = keeper.partition.topic_partition
            yield (topic, str(index)), keeper.timers.index.pending


def _sizes(delays: Delays) -> Iterator[LabelledValue]:
    for keeper in delays.keepers():
        topic, index = keeper.partition.topic_partition
        yield (topic, str(index)), keeper.timers.companion.size_bytes
