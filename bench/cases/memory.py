"""What a cluster holds in memory once the load is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.clusters.cluster import ClusterTarget
from bench.measure import Measure
from bench.servers.usage import rss_mb
from bench.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMemory:
    """Resident memory of all processes, and of the brokers alone."""

    rounds: int = 1
    partitions: int = 1
    title: str = "memory of three brokers"
    kind: str = "throughput"

    def measures(self) -> Sequence[Measure]:
        return (
            self._measure("resident memory after the load, everything that runs"),
            self._measure("resident memory after the load, the three brokers"),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        if not isinstance(target, ClusterTarget):
            return {}
        everything, brokers = (measure.key for measure in self.measures())
        return {everything: rss_mb(*target.pids), brokers: rss_mb(*target.broker_pids)}

    def _measure(self, label: str) -> Measure:
        return Measure(key=label, label=label, unit="MB", higher_is_better=False)
