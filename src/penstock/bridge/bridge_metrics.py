"""What a bridge counts, in Prometheus metrics named `penstock_bridge_...`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeCounts:
    """Since the start."""

    received: int
    forwarded: int
    removed: int
    repeats_avoided: int
    repeats_possible: int
    dead_lettered: int


class BridgeMetrics:
    """Thread-safe, as the metrics of prometheus_client are."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, what: str) -> Counter:
            return Counter(f"penstock_bridge_{name}", what, registry=self.registry)

        self.received = counter("received", "Messages taken from delay topics.")
        self.forwarded = counter("forwarded", "Messages sent to their target topics.")
        self.removed = counter("removed", "Pending messages that were cancelled or replaced.")
        self.repeats_avoided = counter(
            "repeats_avoided", "Messages read or found again that had been stored or sent before, and were skipped."
        )
        self.repeats_possible = counter(
            "repeats_possible", "Messages sent again without knowing whether they had been sent before."
        )
        self.dead_lettered = counter("dead_lettered", "Messages sent to the dead-letter topic.")
        self.lateness = Histogram(
            "penstock_bridge_lateness_seconds",
            "Time from when a message was due until it was forwarded.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.pending = Gauge(
            "penstock_bridge_pending",
            "Messages that wait, in the shards that this bridge sends.",
            registry=self.registry,
        )
        self.shards = Gauge("penstock_bridge_shards", "Shards that this bridge sends.", registry=self.registry)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def counts(self) -> BridgeCounts:
        values: Mapping[str, float] = {
            sample.name: sample.value for family in self.registry.collect() for sample in family.samples
        }

        def of(name: str) -> int:
            return int(values[f"penstock_bridge_{name}_total"])

        return BridgeCounts(
            received=of("received"),
            forwarded=of("forwarded"),
            removed=of("removed"),
            repeats_avoided=of("repeats_avoided"),
            repeats_possible=of("repeats_possible"),
            dead_lettered=of("dead_lettered"),
        )
