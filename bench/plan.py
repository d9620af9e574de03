"""Which cases a run has, and how long they take: full, quick or smoke."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases.ceiling import Ceiling
from bench.cases.commits import Commits
from bench.cases.footprint import AfterRun, IdleConnections, StartUp
from bench.cases.latency import Latency
from bench.cases.overload import Overload
from bench.cases.rebalance import Rebalance, ShippedRebalance
from bench.cases.throttled import Throttled
from bench.cases.throughput import Throughput
from bench.cases.transactions import Transactions
from bench.cases.unbatched import Unbatched
from bench.client.driver import Load
from bench.measure import Case

SMALL_BATCHES = Load(batch_bytes=65_536)
IDEMPOTENT = Load(acks="all", idempotent=True)
LZ4 = Load(codec="lz4")


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases in the order they run, and how a broker warms up first: how long under load, and then with which cases."""

    name: str
    cases: tuple[Case, ...]
    warm_up_s: float
    rehearsals: tuple[Case, ...] = ()

    def only(self, kinds: Set[str]) -> Plan:
        """The cases of these kinds."""
        return replace(
            self,
            cases=tuple(case for case in self.cases if case.kind in kinds),
            rehearsals=tuple(case for case in self.rehearsals if case.kind in kinds),
        )


KINDS = {
    "footprint",
    "throughput",
    "bare",
    "latency",
    "unbatched",
    "rebalance",
    "commits",
    "transactions",
    "overload",
    "throttled",
    "tls",
}


def full(folder: Path) -> Plan:
    """Everything; about twenty minutes for Penstock and Kafka."""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=5),
        Throughput(size=1024, partitions=1, megabytes=1000, rounds=5),
        Throughput(size=1024, partitions=8, megabytes=1000, rounds=5),
        Throughput(size=100, partitions=1, megabytes=300, rounds=5),
        Throughput(size=100, partitions=8, megabytes=300, rounds=5),
        Throughput(
            size=1024,
            partitions=8,
            megabytes=1000,
            rounds=5,
            variant=", idempotent, acks=all",
            load=IDEMPOTENT,
        ),
        Throughput(size=1024, partitions=1, megabytes=600, rounds=5, variant=", 64 KB batches", load=SMALL_BATCHES),
        Throughput(size=1024, partitions=1, megabytes=600, rounds=3, variant=", lz4 text", load=LZ4, payload="text"),
        Ceiling(seconds=3, rounds=5, megabytes=1000),
        Latency(seconds=15, rounds=5),
        Unbatched(in_flight=1, seconds=3, rounds=5),
        Unbatched(in_flight=5, seconds=3, rounds=5),
        Rebalance(task="members", rounds=5),
        Rebalance(task="consumers", rounds=1),
        ShippedRebalance(folder=folder, rounds=1),
        *(
            Commits(groups=groups, in_flight=in_flight, partitions=partitions, seconds=1.5, rounds=3)
            for groups, in_flight in ((1, 1), (50, 5))
            for partitions in (1, 100)
        ),
        Transactions(messages=1, seconds=1.5, rounds=3),
        Transactions(messages=100, seconds=1.5, rounds=3),
        Transactions(messages=1, producers=8, seconds=1.5, rounds=3),
        Transactions(messages=100, source_messages=100_000, seconds=1.5, rounds=3),
        AfterRun(),
        IdleConnections(count=1000, rounds=1),
        Overload(gigabytes=7, rounds=2),
        Throttled(seconds=15, rounds=3),
    )
    return Plan("full", cases, warm_up_s=75, rehearsals=_rehearsals(seconds=3))


def quick(folder: Path) -> Plan:
    """The goals only, in about six minutes."""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=1),
        Throughput(size=1024, partitions=1, megabytes=400, rounds=3),
        Throughput(size=1024, partitions=8, megabytes=400, rounds=3),
        Throughput(size=100, partitions=1, megabytes=150, rounds=3),
        Ceiling(seconds=1, rounds=3, megabytes=400),
        Latency(seconds=5, rounds=3),
        Unbatched(in_flight=1, seconds=1, rounds=3),
        Unbatched(in_flight=5, seconds=1, rounds=3),
        Rebalance(task="members", rounds=3),
        Commits(groups=1, partitions=1, seconds=1, rounds=3),
        Commits(groups=50, in_flight=5, partitions=100, seconds=1, rounds=3),
        Transactions(messages=1, seconds=1, rounds=3),
        Transactions(messages=100, source_messages=50_000, seconds=1, rounds=3),
        AfterRun(),
    )
    return Plan("quick", cases, warm_up_s=30, rehearsals=_rehearsals(seconds=2))


def _rehearsals(seconds: float) -> tuple[Case, ...]:
    """What a load of messages does not touch: the coordinators."""
    return (
        Rebalance(task="members", rounds=1),
        Rebalance(task="members", rounds=1),
        Commits(groups=50, in_flight=5, partitions=1, seconds=seconds, rounds=1),
        Commits(groups=50, in_flight=5, partitions=100, seconds=seconds, rounds=1),
        Transactions(messages=1, producers=8, seconds=seconds, rounds=1),
    )


def peers(folder: Path) -> Plan:
    """What brokers with another protocol can be asked too."""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=3),
        Throughput(size=1024, partitions=1, megabytes=200, rounds=3),
        Throughput(size=100, partitions=1, megabytes=30, rounds=3),
        Latency(seconds=10, rounds=2),
        Unbatched(in_flight=1, seconds=2, rounds=3),
        Unbatched(in_flight=5, seconds=2, rounds=3),
        AfterRun(),
        IdleConnections(count=1000, rounds=1),
    )
    return Plan("peers", cases, warm_up_s=0)


def encrypted(length: str) -> Plan:
    """Clients with TLS. The brokers have a listener more than those of the other plans."""
    if length == "smoke":
        smallest = Throughput(size=1024, partitions=2, megabytes=10, rounds=1, has_tls=True, kind="tls")
        return Plan("smoke", (smallest, Latency(seconds=2, rounds=1, rate=200, has_tls=True, kind="tls")), warm_up_s=0)
    is_quick = length == "quick"
    rounds, megabytes, seconds = (3, 400, 5) if is_quick else (5, 1000, 15)
    cases: tuple[Case, ...] = (
        *(
            Throughput(size=1024, partitions=count, megabytes=megabytes, rounds=rounds, has_tls=True, kind="tls")
            for count in (1, 8)
        ),
        Latency(seconds=seconds, rounds=rounds, has_tls=True, kind="tls"),
    )
    return Plan(length, cases, warm_up_s=30 if is_quick else 75)


def smoke(folder: Path) -> Plan:
    """Every kind of case once, in seconds: does the program work?"""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=1),
        Throughput(size=1024, partitions=2, megabytes=10, rounds=1),
        Ceiling(seconds=0.3, rounds=1, megabytes=20),
        Latency(seconds=2, rounds=1, rate=200),
        Unbatched(in_flight=5, seconds=0.3, rounds=1),
        Rebalance(task="members", members=5, topics=2, partitions=10, rounds=1),
        Rebalance(
            task="consumers",
            members=3,
            topics=2,
            partitions=10,
            protocols=("classic",),
            heartbeat_ms=200,
            rounds=1,
        ),
        ShippedRebalance(folder=folder, members=3, topics=2, partitions=10, rounds=1),
        Commits(groups=1, partitions=2, seconds=0.3, rounds=1),
        Commits(groups=3, in_flight=5, partitions=2, seconds=0.3, rounds=1),
        Transactions(messages=1, producers=2, seconds=0.3, rounds=1),
        Transactions(messages=10, source_messages=5000, seconds=0.3, rounds=1),
        AfterRun(),
        IdleConnections(count=20, rounds=1),
        Overload(gigabytes=0.1, rounds=1),
        Throttled(seconds=2, rounds=1, rate=200),
    )
    return Plan("smoke", cases, warm_up_s=0)
