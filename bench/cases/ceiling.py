"""How much a broker moves for a client that costs next to nothing, and how much of that bare sockets would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.cases.topic import fresh_topic, settle
from bench.client.ceiling import PLAIN
from bench.client.job import Job
from bench.client.launch import RunningJob, run
from bench.measure import BARE_FETCH_GOAL, BARE_PRODUCE_GOAL, CPU_GOAL, PLAIN_BOUND, Measure
from bench.servers.plain import plain_server
from bench.target import Target

_SIZE = 1024
_GOALS = {"produce": BARE_PRODUCE_GOAL, "consume": BARE_FETCH_GOAL, "both at once": BARE_FETCH_GOAL}
_TASKS = {"produce": "bare_produce", "consume": "bare_fetch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Batches of 1 KiB messages, not quite 1 MB each: in, out, both at once; and the same with a plain server."""

    seconds: float
    rounds: int
    megabytes: int
    """What is produced in a round at most."""
    partitions: int = 4
    kind: str = "bare"

    @property
    def title(self) -> str:
        return f"1 KiB, {self.partitions} partitions, bare client"

    def measures(self) -> Sequence[Measure]:
        found: list[Measure] = []
        for verb, goal in _GOALS.items():
            found += [
                self._measure(verb, "MB/s", higher=True, goal=goal),
                self._measure(verb, "CPU-s/GB", higher=False, goal=CPU_GOAL),
            ]
        return [
            *found,
            *(self._measure(verb, "of plain sockets", higher=True, bound=PLAIN_BOUND) for verb in _TASKS),
        ]

    def run(self, target: Target) -> Mapping[str, float]:
        if target.protocol != "kafka":
            return {}
        settle()
        figures: dict[str, float] = {}
        with fresh_topic(target, self.partitions) as source, fresh_topic(target, self.partitions) as sink:
            out = Job(
                task="bare_fetch",
                protocol=target.protocol,
                address=target.address,
                topic=source,
                partitions=self.partitions,
                size=_SIZE,
                limit_s=self.seconds,
                server_pids=target.pids,
            )
            into = replace(out, task="bare_produce", topic=sink, count=self.megabytes)
            run(replace(out, task="bare_store"))
            jobs = {"produce": into, "consume": out}
            for verb, job in jobs.items():
                alone = run(job)
                figures |= self._figures(verb, [alone])
                settle()
                figures[self._key(verb, "of plain sockets")] = _mb_s(alone) / _mb_s(_with_plain(job))
            with RunningJob(into) as one, RunningJob(out) as other:
                figures |= self._figures("both at once", [one.wait(), other.wait()])
        return figures

    def _figures(self, verb: str, windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Of conversations at the same time."""
        figures = {self._key(verb, "MB/s"): sum(_mb_s(window) for window in windows)}
        if "server_cpu_s" in windows[0]:
            cores = sum(window["server_cpu_s"] / window["seconds"] for window in windows) / len(windows)
            figures[self._key(verb, "CPU-s/GB")] = 1000 * cores / figures[self._key(verb, "MB/s")]
        return figures

    def _key(self, verb: str, unit: str) -> str:
        return f"{verb}, {self.title}, {unit}"

    def _measure(
        self, verb: str, unit: str, *, higher: bool, goal: float | None = None, bound: float | None = None
    ) -> Measure:
        return Measure(
            key=self._key(verb, unit),
            label=f"{verb} {self.title}",
            unit=unit,
            higher_is_better=higher,
            goal=goal,
            bound=bound,
        )


def _mb_s(window: Mapping[str, float]) -> float:
    return window["count"] * _SIZE / 1e6 / window["seconds"]


def _with_plain(job: Job) -> Mapping[str, float]:
    with plain_server() as plain:
        return run(replace(job, protocol=PLAIN, address=plain.address, server_pids=(plain.pid,)))
