"""How long a message takes from one process to another at a modest, fixed rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.cases.topic import fresh_topic, settle
from bench.client.driver import Load
from bench.client.job import Job
from bench.client.launch import RunningJob
from bench.measure import LATENCY_GOAL, Measure
from bench.target import Target

GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Stamped messages, sender and receiver in processes of their own."""

    seconds: float
    rounds: int
    rate: int = 1000
    size: int = 1024
    partitions: int = 1
    has_tls: bool = False
    kind: str = "latency"

    @property
    def title(self) -> str:
        return f"end to end, {self.rate:,} msg/s of {self.size} B{', TLS' if self.has_tls else ''}"

    def measures(self) -> Sequence[Measure]:
        return latency_measures(self.title, LATENCY_GOAL)

    def run(self, target: Target) -> Mapping[str, float]:
        settle()
        with fresh_topic(target, 1) as topic:
            listener, pacer = (
                paced_job(target, topic, task, self.rate, self.size, self.seconds, has_tls=self.has_tls)
                for task in ("listen", "pace")
            )
            with RunningJob(replace(listener, skip=self.rate)) as listening:
                listening.wait_ready()
                with RunningJob(pacer) as pacing:
                    pacing.wait()
                return latency_figures(self.title, listening.result())


def paced_job(
    target: Target, topic: str, task: str, rate: int, size: int, seconds: float, *, has_tls: bool = False
) -> Job:
    """One side of a paced stream; the listener is given time to see the end of it."""
    address, ca_file = target.endpoint(has_tls=has_tls)
    return Job(
        task=task,
        protocol=target.protocol,
        address=address,
        ca_file=ca_file,
        topic=topic,
        size=size,
        rate=rate,
        limit_s=seconds + (GRACE_S if task == "listen" else 0),
        load=Load(linger_ms=0),
    )


def latency_measures(title: str, goal: float | None) -> list[Measure]:
    """p50 to max; the goal stands on p99."""
    return [
        Measure(
            key=f"{title}, {name}_ms",
            label=f"{title}: {label}",
            unit="ms",
            higher_is_better=False,
            goal=goal if name == "p99" else None,
        )
        for name, label in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
    ]


def latency_figures(title: str, heard: Mapping[str, float]) -> dict[str, float]:
    return {f"{title}, {name}": heard[name] for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms")}
