"""How many offset commits a broker acknowledges: one consumer that waits for each, and many groups side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cases.topic import fresh_name, fresh_topics
from bench.client.driver import Load
from bench.client.job import Job
from bench.client.launch import run
from bench.measure import COMMIT_GOAL, Measure, client_cores
from bench.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """So many partitions a commit; a single group is a librdkafka consumer, several are bare members."""

    groups: int
    partitions: int
    seconds: float
    rounds: int
    in_flight: int = 1
    kind: str = "commits"

    @property
    def title(self) -> str:
        who = "one consumer" if self.groups == 1 else f"{self.groups} groups, {self.in_flight} in flight each"
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"offset commits of {parts}, {who}"

    def measures(self) -> Sequence[Measure]:
        latency = [("p50_ms", "p50"), ("p99_ms", "p99")] if self.groups == 1 else []
        return [
            Measure(
                key=f"{self.title}, commits_s",
                label=self.title,
                unit="commits/s",
                higher_is_better=True,
                goal=COMMIT_GOAL,
            ),
            *(
                Measure(key=f"{self.title}, {key}", label=f"{self.title}: {label}", unit="ms", higher_is_better=False)
                for key, label in latency
            ),
            Measure(key=f"{self.title}, cpu_us", label=self.title, unit="CPU-us/commit", higher_is_better=False),
            client_cores(self.title),
        ]

    def run(self, target: Target) -> Mapping[str, float]:
        with fresh_topics(target, 1, self.partitions) as (topic,):
            window = run(
                Job(
                    task="commit" if self.groups == 1 else "commits",
                    protocol=target.protocol,
                    address=target.address,
                    topic=topic,
                    partitions=self.partitions,
                    members=self.groups,
                    group=fresh_name(),
                    limit_s=self.seconds,
                    server_pids=target.pids,
                    load=Load(in_flight=self.in_flight),
                )
            )
        figures = {
            f"{self.title}, commits_s": window["count"] / window["seconds"],
            f"{self.title}, client_cores": window["client_cpu_s"] / window["seconds"],
            **{f"{self.title}, {key}": window[key] for key in ("p50_ms", "p99_ms") if key in window},
        }
        if "server_cpu_s" in window:
            figures[f"{self.title}, cpu_us"] = window["server_cpu_s"] / window["count"] * 1e6
        return figures
