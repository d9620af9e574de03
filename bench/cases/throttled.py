"""A client with a quota that ignores what it is told, and what a second client feels of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.cases.latency import latency_figures, latency_measures, paced_job
from bench.cases.topic import fresh_topic, settle
from bench.client.greedy import CLIENT_ID
from bench.client.job import Job
from bench.client.launch import RunningJob
from bench.measure import LATENCY_GOAL, Measure
from bench.target import Target
from penstock.admin import Cluster
from penstock.security.quota_entity import QuotaEntity


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A paced stream while another client sends as much as its sockets take, and may send little."""

    seconds: float
    rounds: int
    quota_mb_s: float = 5
    rate: int = 1000
    size: int = 1024
    partitions: int = 1
    kind: str = "throttled"

    @property
    def title(self) -> str:
        return f"client that ignores its quota of {self.quota_mb_s:g} MB/s"

    @property
    def _beside(self) -> str:
        return f"second client ({self.rate:,} msg/s) beside one that ignores throttling"

    def measures(self) -> Sequence[Measure]:
        taken = Measure(key=f"{self.title}, mb_s", label=f"{self.title}: taken", unit="MB/s", higher_is_better=False)
        return [taken, *latency_measures(self._beside, LATENCY_GOAL)]

    def run(self, target: Target) -> Mapping[str, float]:
        settle()
        with _limited(target, self.quota_mb_s * 1e6), fresh_topic(target, 1) as heavy, fresh_topic(target, 1) as light:
            greedy = Job(
                task="greedy",
                protocol=target.protocol,
                address=target.address,
                topic=heavy,
                limit_s=self.seconds,
                server_pids=target.pids,
            )
            listener, pacer = (
                paced_job(target, light, task, self.rate, self.size, self.seconds) for task in ("listen", "pace")
            )
            with RunningJob(greedy) as sending:
                sending.wait_ready()
                with RunningJob(replace(listener, skip=self.rate)) as listening:
                    listening.wait_ready()
                    with RunningJob(pacer) as pacing:
                        pacing.wait()
                    heard = listening.result()
                window = sending.wait()
        speed = window["count"] * window["bytes"] / 1e6 / window["seconds"]
        return {f"{self.title}, mb_s": speed, **latency_figures(self._beside, heard)}


@contextmanager
def _limited(target: Target, bytes_per_s: float) -> Iterator[None]:
    quotas = Cluster(target.address).quotas
    entity = QuotaEntity(client_id=CLIENT_ID)
    quotas.alter({entity: {"producer_byte_rate": bytes_per_s}}).all()
    try:
        yield
    finally:
        quotas.remove([entity]).all()
