"""Producing past the disk's speed: what the disk takes, and what a second, quiet client feels meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cases.latency import latency_figures, latency_measures, paced_job
from bench.cases.topic import fresh_topic, settle
from bench.client.driver import DriverError, Load
from bench.client.job import Job
from bench.client.launch import RunningJob, run
from bench.measure import Measure
from bench.target import Target

LIMIT_S = 60.0
ROOM = 2  # times the bytes written must be free on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """A bounded number of gigabytes as fast as they are taken, beside a paced stream."""

    gigabytes: float
    rounds: int
    rate: int = 200
    size: int = 1024
    partitions: int = 1
    kind: str = "overload"

    @property
    def title(self) -> str:
        return f"sustained produce of {self.gigabytes:g} GB"

    @property
    def _beside(self) -> str:
        return f"second client ({self.rate} msg/s) meanwhile"

    def measures(self) -> Sequence[Measure]:
        speed = Measure(key=f"{self.title}, mb_s", label=self.title, unit="MB/s", higher_is_better=True)
        return [speed, *latency_measures(self._beside, None)]

    def run(self, target: Target) -> Mapping[str, float]:
        if target.folder is not None:
            free = shutil.disk_usage(target.folder).free
            if free < ROOM * self.gigabytes * 1e9:
                raise DriverError(f"only {free / 1e9:.0f} GB are free for {self.gigabytes:g} GB of messages")
        settle()
        with (
            fresh_topic(target, 1) as heavy,
            fresh_topic(target, 1) as light,
            RunningJob(paced_job(target, light, "listen", self.rate, self.size, LIMIT_S)) as listening,
        ):
            listening.wait_ready()
            with RunningJob(paced_job(target, light, "pace", self.rate, self.size, LIMIT_S)) as pacing:
                window = run(
                    Job(
                        task="produce",
                        protocol=target.protocol,
                        address=target.address,
                        topic=heavy,
                        size=self.size,
                        count=int(self.gigabytes * 1e9 / self.size),
                        limit_s=LIMIT_S,
                        server_pids=target.pids,
                        load=Load(),
                    )
                )
                pacing.result()
            heard = listening.result()
        speed = window["count"] * self.size / 1e6 / window["seconds"]
        return {f"{self.title}, mb_s": speed, **latency_figures(self._beside, heard)}
