"""What a broker costs without doing anything: time to start, memory at rest and with silent connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client.dialects import dialect
from bench.measure import MEMORY_GOAL, START_GOAL, Measure
from bench.servers.usage import rss_mb
from bench.target import Target, start

REST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """A second instance on fresh storage: time to its first acknowledged message, memory after a rest."""

    folder: Path
    rounds: int
    partitions: int = 1
    title: str = "start-up"
    kind: str = "footprint"

    def measures(self) -> Sequence[Measure]:
        return (
            Measure(
                key="start-up, s",
                label="start to first acknowledged message",
                unit="s",
                higher_is_better=False,
                goal=START_GOAL,
            ),
            Measure(
                key="memory, idle, mb",
                label="resident memory, idle after start",
                unit="MB",
                higher_is_better=False,
                goal=MEMORY_GOAL,
            ),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        if target.server is None:
            return {}
        folder = self.folder / f"start-{time.monotonic_ns()}"
        other, seconds = start(target.server, folder)
        try:
            time.sleep(REST_S)
            return {"start-up, s": seconds, "memory, idle, mb": rss_mb(*other.pids)}
        finally:
            other.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRun:
    """Resident memory once the load is over."""

    rounds: int = 1
    partitions: int = 1
    title: str = "memory after the run"
    kind: str = "footprint"

    def measures(self) -> Sequence[Measure]:
        return (
            Measure(
                key="memory, after, mb",
                label="resident memory after the load",
                unit="MB",
                higher_is_better=False,
                goal=MEMORY_GOAL,
            ),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        return {"memory, after, mb": rss_mb(*target.pids)} if target.pids else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleConnections:
    """What silent connections add to a broker's memory."""

    count: int
    rounds: int
    partitions: int = 1
    kind: str = "footprint"

    @property
    def title(self) -> str:
        return f"{self.count:,} idle connections"

    def measures(self) -> Sequence[Measure]:
        return (
            Measure(
                key=f"{self.title}, mb",
                label=f"memory of {self.title}",
                unit="MB",
                higher_is_better=False,
            ),
        )

    def run(self, target: Target) -> Mapping[str, float]:
        if not target.pids:
            return {}
        speech = dialect(target.protocol)
        before = rss_mb(*target.pids)
        with contextlib.ExitStack() as stack:
            for _ in range(self.count):
                stack.enter_context(speech.idle_connection(target.address))
            time.sleep(REST_S)
            return {f"{self.title}, mb": rss_mb(*target.pids) - before}
