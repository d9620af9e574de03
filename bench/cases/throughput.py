"""How much goes in and out, batched, and what CPU the broker pays for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.cases.topic import fresh_topic, settle
from bench.client.driver import Load
from bench.client.job import Job
from bench.client.launch import run
from bench.measure import CPU_GOAL, THROUGHPUT_GOAL, Measure
from bench.target import Target

_NAMES = {1024: "1 KiB", 100: "100 B"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Produce a topic full, then read it from the beginning."""

    size: int
    partitions: int
    megabytes: int
    rounds: int
    variant: str = ""
    load: Load = field(default_factory=Load)
    payload: str = "random"
    has_goals: bool = True
    reads: int = 1
    """How many times the topic is read: one that is small is read in no time."""
    has_tls: bool = False
    kind: str = "throughput"

    @property
    def title(self) -> str:
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"{_NAMES.get(self.size, f'{self.size} B')}, {parts}{', TLS' if self.has_tls else ''}{self.variant}"

    def measures(self) -> Sequence[Measure]:
        found: list[Measure] = []
        for verb in ("produce", "consume"):
            found += [
                self._measure(verb, "mb_s", "MB/s", higher=True, goal=THROUGHPUT_GOAL),
                self._measure(verb, "msg_s", "msg/s", higher=True, detail=True),
                self._measure(verb, "cpu_s_gb", "CPU-s/GB", higher=False, goal=CPU_GOAL),
                self._measure(verb, "client_cpu_s_gb", "client CPU-s/GB", higher=False, detail=True),
                self._measure(verb, "client_cores", "client cores busy", higher=False, detail=True),
            ]
        return found

    def run(self, target: Target) -> Mapping[str, float]:
        address, ca_file = target.endpoint(has_tls=self.has_tls)
        settle()
        count = self.megabytes * 1_000_000 // self.size
        with fresh_topic(target, self.partitions) as topic:
            job = Job(
                task="produce",
                protocol=target.protocol,
                address=address,
                ca_file=ca_file,
                topic=topic,
                partitions=self.partitions,
                size=self.size,
                count=count,
                server_pids=target.pids,
                payload=self.payload,
                load=self.load,
            )
            sent = run(job)
            reading = replace(job, task="consume", count=int(sent["count"]))
            taken = _together([run(reading) for _ in range(self.reads)])
        return {**self._figures("produce", sent), **self._figures("consume", taken)}

    def _figures(self, verb: str, window: Mapping[str, float]) -> dict[str, float]:
        gigabytes = window["count"] * self.size / 1e9
        figures = {
            self._key(verb, "mb_s"): gigabytes * 1000 / window["seconds"],
            self._key(verb, "msg_s"): window["count"] / window["seconds"],
            self._key(verb, "client_cpu_s_gb"): window["client_cpu_s"] / gigabytes,
            self._key(verb, "client_cores"): window["client_cpu_s"] / window["seconds"],
        }
        if "server_cpu_s" in window:
            figures[self._key(verb, "cpu_s_gb")] = window["server_cpu_s"] / gigabytes
        return figures

    def _key(self, verb: str, what: str) -> str:
        return f"{verb}, {self.title}, {what}"

    def _measure(
        self,
        verb: str,
        what: str,
        unit: str,
        *,
        higher: bool,
        goal: float | None = None,
        detail: bool = False,
    ) -> Measure:
        return Measure(
            key=self._key(verb, what),
            label=f"{verb} {self.title}",
            unit=unit,
            higher_is_better=higher,
            goal=goal if self.has_goals else None,
            detail=detail,
        )


def _together(windows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Windows one after the other as one."""
    return {name: sum(window[name] for window in windows) for name in windows[0]}
