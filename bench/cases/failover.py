"""How long producing is interrupted when the leader of a partition dies, or is restarted by plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.cases.topic import fresh_topic, settle
from bench.client.job import Job
from bench.client.launch import RunningJob
from bench.clusters.cluster import ClusterTarget
from bench.measure import KILL_BOUND_MS, RESTART_BOUND_MS, Measure
from bench.target import Target

LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """An idempotent producer with acks=all and default settings, while one of the leaders goes and comes back."""

    rounds: int
    is_planned: bool
    partitions: int = 6
    size: int = 100
    rest_s: float = 3.0
    """How long the cluster is watched once it is whole again: leadership may go back to who had it before."""
    kind: str = "failover"

    @property
    def title(self) -> str:
        return "planned restart of a leader" if self.is_planned else "kill -9 of a leader"

    def measures(self) -> Sequence[Measure]:
        bound = RESTART_BOUND_MS if self.is_planned else KILL_BOUND_MS
        found = [
            self._measure("worst", "interruption, worst partition", bound=bound),
            self._measure("typical", "interruption, median partition"),
        ]
        if self.is_planned:
            found.append(self._measure("going", "of that by its stop"))
        found.append(self._measure("coming", "of that by its return" if self.is_planned else "by its return, later"))
        label = f"{self.title}: acknowledged meanwhile, all of them stored once"
        found.append(Measure(key=f"{self.title}, count", label=label, unit="messages", higher_is_better=True))
        return found

    def run(self, target: Target) -> Mapping[str, float]:
        if not isinstance(target, ClusterTarget):
            return {}
        settle()
        target.wait_until_whole()
        with fresh_topic(target, self.partitions) as topic:
            job = Job(
                task="pulse",
                protocol=target.protocol,
                address=target.address,
                topic=topic,
                partitions=self.partitions,
                size=self.size,
                limit_s=LIMIT_S,
            )
            with RunningJob(job) as pulse:
                pulse.wait_ready()
                self._hurt(target, topic, pulse)
                return self._figures(pulse.result())

    def _hurt(self, target: ClusterTarget, topic: str, pulse: RunningJob) -> None:
        leader = target.next_leader(topic)
        try:
            _mark(pulse)
            if self.is_planned:
                leader.stop()
            else:
                leader.kill()
            target.wait_until_without(leader, topic)
            _wait_for_more(pulse)
            _mark(pulse)
        finally:
            leader.start()
        leader.wait_until_listening()
        target.wait_until_whole()
        time.sleep(self.rest_s)
        _wait_for_more(pulse)

    def _figures(self, told: Mapping[str, float]) -> dict[str, float]:
        gaps = [[told[f"gap_{phase}_{each}_ms"] for each in range(self.partitions)] for phase in (0, 1)]
        # A restart is one thing to its users; of a death only the time until somebody else leads is the cluster's.
        whole = [max(both) for both in zip(*gaps, strict=True)] if self.is_planned else gaps[0]
        return {
            f"{self.title}, worst": max(whole),
            f"{self.title}, typical": statistics.median(whole),
            f"{self.title}, going": max(gaps[0]),
            f"{self.title}, coming": max(gaps[1]),
            f"{self.title}, count": told["count"],
        }

    def _measure(self, what: str, label: str, *, bound: float | None = None) -> Measure:
        return Measure(
            key=f"{self.title}, {what}",
            label=f"{self.title}: {label}",
            unit="ms",
            higher_is_better=False,
            bound=bound,
            shows_worst=True,
        )


def _mark(pulse: RunningJob) -> None:
    pulse.tell("mark")


def _wait_for_more(pulse: RunningJob) -> None:
    pulse.tell("more")
    pulse.wait_ready()
