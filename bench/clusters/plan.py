"""Which cases a run with clusters has: three brokers of a kind side by side, then one broker after a crash."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from bench.cases.alone import Alone
from bench.cases.failover import Failover
from bench.cases.memory import ClusterMemory
from bench.cases.recovery import Recovery
from bench.cases.throughput import Throughput
from bench.client.driver import Load
from bench.measure import Case
from bench.plan import Plan

KINDS = {"throughput", "alone", "failover", "recovery"}
_IDEMPOTENT = Load(acks="all", idempotent=True)


@dataclass(frozen=True, slots=True)
class ClusterPlans:
    """What is asked of three brokers, and what of one."""

    three: Plan
    one: Plan

    def only(self, kinds: Set[str]) -> ClusterPlans:
        return ClusterPlans(self.three.only(kinds), self.one.only(kinds))


def full(folder: Path) -> ClusterPlans:
    """About twelve minutes for Penstock and Kafka."""
    three: tuple[Case, ...] = (
        _throughput(partitions=6, megabytes=250, rounds=5),
        _throughput(partitions=1, megabytes=250, rounds=5),
        Alone(seconds=3, rounds=5),
        ClusterMemory(),
        Failover(is_planned=True, rounds=5),
        Failover(is_planned=False, rounds=5),
    )
    rehearsals: tuple[Case, ...] = (
        *(_throughput(partitions=partitions, megabytes=150, rounds=1) for partitions in (6, 1) * 3),
        Alone(seconds=3, rounds=1),
    )
    one = (Recovery(folder=folder, megabytes=1000, rounds=1), Recovery(folder=folder, megabytes=10_000, rounds=1))
    return ClusterPlans(Plan("cluster", three, 0, rehearsals), Plan("cluster", one, 0))


def smoke(folder: Path) -> ClusterPlans:
    """Every kind of case once, small: does the program work?"""
    three: tuple[Case, ...] = (
        _throughput(partitions=2, megabytes=5, rounds=1),
        Alone(seconds=0.3, partitions=2, rounds=1),
        ClusterMemory(),
        Failover(is_planned=True, partitions=3, rest_s=0.2, rounds=1),
        Failover(is_planned=False, partitions=3, rest_s=0.2, rounds=1),
    )
    one = (Recovery(folder=folder, megabytes=20, tail_megabytes=5, partitions=2, note_ms=1000, rounds=1),)
    return ClusterPlans(Plan("smoke", three, 0), Plan("smoke", one, 0))


def _throughput(*, partitions: int, megabytes: int, rounds: int) -> Throughput:
    return Throughput(
        size=1024, partitions=partitions, megabytes=megabytes, rounds=rounds, load=_IDEMPOTENT, has_goals=False, reads=3
    )
