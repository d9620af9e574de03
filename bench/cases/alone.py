"""How long one message takes until every replica in sync has it, when nothing else is on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cases.latency import latency_figures, latency_measures
from bench.cases.topic import fresh_topic, settle
from bench.client.driver import Load
from bench.client.job import Job
from bench.client.launch import run
from bench.measure import Measure
from bench.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One message, its acknowledgement, the next; the partitions in turn."""

    seconds: float
    rounds: int
    partitions: int = 6
    size: int = 1024
    kind: str = "alone"

    @property
    def title(self) -> str:
        return "one message at a time, acks=all"

    def measures(self) -> Sequence[Measure]:
        return (
            *latency_measures(self.title, None),
            Measure(key=f"{self.title}, cpu_us", label=self.title, unit="CPU-us/message", higher_is_better=False),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        settle()
        with fresh_topic(target, self.partitions) as topic:
            told = run(
                Job(
                    task="alone",
                    protocol=target.protocol,
                    address=target.address,
                    topic=topic,
                    partitions=self.partitions,
                    size=self.size,
                    limit_s=self.seconds,
                    server_pids=target.pids,
                    load=Load(acks="all", idempotent=True, linger_ms=0),
                )
            )
        figures = latency_figures(self.title, told)
        if "server_cpu_s" in told:
            figures[f"{self.title}, cpu_us"] = told["server_cpu_s"] / told["count"] * 1e6
        return figures
