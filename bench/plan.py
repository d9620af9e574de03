"""Which cases a run has, and how long they take: full, quick or smoke."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.cases.footprint import AfterRun, IdleConnections, StartUp
from bench.cases.latency import Latency
from bench.cases.overload import Overload
from bench.cases.throughput import Throughput
from bench.cases.unbatched import Unbatched
from bench.client.driver import Load
from bench.measure import Case

SMALL_BATCHES = Load(batch_bytes=65_536)
IDEMPOTENT = Load(acks="all", idempotent=True)
LZ4 = Load(codec="lz4")


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases in the order they run, and how long a broker may warm up first."""

    name: str
    cases: tuple[Case, ...]
    warm_up_s: float


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
        Latency(seconds=15, rounds=5),
        Unbatched(in_flight=1, seconds=3, rounds=5),
        Unbatched(in_flight=5, seconds=3, rounds=5),
        AfterRun(),
        IdleConnections(count=1000, rounds=1),
        Overload(gigabytes=7, rounds=2),
    )
    return Plan("full", cases, warm_up_s=75)


def quick(folder: Path) -> Plan:
    """The goals only, in about three minutes."""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=1),
        Throughput(size=1024, partitions=1, megabytes=400, rounds=3),
        Throughput(size=1024, partitions=8, megabytes=400, rounds=3),
        Throughput(size=100, partitions=1, megabytes=150, rounds=3),
        Latency(seconds=5, rounds=3),
        Unbatched(in_flight=1, seconds=1, rounds=3),
        Unbatched(in_flight=5, seconds=1, rounds=3),
        AfterRun(),
    )
    return Plan("quick", cases, warm_up_s=30)


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


def smoke(folder: Path) -> Plan:
    """Every kind of case once, in seconds: does the program work?"""
    cases: tuple[Case, ...] = (
        StartUp(folder=folder, rounds=1),
        Throughput(size=1024, partitions=2, megabytes=10, rounds=1),
        Latency(seconds=2, rounds=1, rate=200),
        Unbatched(in_flight=5, seconds=0.3, rounds=1),
        AfterRun(),
        IdleConnections(count=20, rounds=1),
        Overload(gigabytes=0.1, rounds=1),
    )
    return Plan("smoke", cases, warm_up_s=0)
