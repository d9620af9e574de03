"""How many requests of one small record a broker acknowledges: the worst case for any cost a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cases.topic import fresh_topic, settle
from bench.client.driver import Load
from bench.client.job import Job
from bench.client.launch import run
from bench.measure import UNBATCHED_GOAL, Measure
from bench.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbatched:
    """One record a request, a fixed number of requests on the way."""

    in_flight: int
    seconds: float
    rounds: int
    size: int = 100
    partitions: int = 1
    kind: str = "unbatched"

    @property
    def title(self) -> str:
        return f"unbatched {self.size} B, {self.in_flight} in flight"

    def measures(self) -> Sequence[Measure]:
        return (
            Measure(
                key=f"{self.title}, req_s",
                label=self.title,
                unit="requests/s",
                higher_is_better=True,
                goal=UNBATCHED_GOAL,
            ),
            Measure(
                key=f"{self.title}, cpu_us",
                label=self.title,
                unit="CPU-us/request",
                higher_is_better=False,
            ),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        settle()
        with fresh_topic(target, 1) as topic:
            window = run(
                Job(
                    task="single",
                    protocol=target.protocol,
                    address=target.address,
                    topic=topic,
                    size=self.size,
                    limit_s=self.seconds,
                    server_pids=target.pids,
                    load=Load(linger_ms=0, one_per_request=True, in_flight=self.in_flight),
                )
            )
        figures = {f"{self.title}, req_s": window["count"] / window["seconds"]}
        if "server_cpu_s" in window:
            figures[f"{self.title}, cpu_us"] = window["server_cpu_s"] / window["count"] * 1e6
        return figures
