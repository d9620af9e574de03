"""Topics for one measurement: created, and deleted again together with their data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.client.dialects import dialect
from bench.client.topics import create_topics, delete_topics
from bench.servers.usage import cpu_s
from bench.target import Target

_NUMBERS = itertools.count(1)
SETTLE_LIMIT_S = 4.0
SETTLED_KB = 100_000
CALM_LIMIT_S = 6.0
CALM_LOOK_S = 0.2
CALM_SHARE = 0.1  # of one core


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """A topic nobody used before."""
    name = fresh_name()
    speech = dialect(target.protocol)
    speech.create(target.address, name, partitions, target.replicas)
    try:
        yield name
    finally:
        speech.delete(target.address, name)


@contextmanager
def fresh_topics(target: Target, count: int, partitions: int) -> Iterator[tuple[str, ...]]:
    """Topics nobody used before; the broker is at rest when it has made them, and again when they are gone."""
    names = tuple(fresh_name() for _ in range(count))
    create_topics(target.address, names, partitions, target.replicas)
    calm(target)
    try:
        yield names
    finally:
        delete_topics(target.address, names)
        calm(target)


def fresh_name() -> str:
    """A name, of a topic or a group, that no broker of this run has heard yet."""
    return f"bench-{next(_NUMBERS)}"


def calm(target: Target) -> None:
    """Wait until the broker is at rest: some work on topics is done after it was acknowledged, Kafka's above all."""
    deadline = time.monotonic() + CALM_LIMIT_S
    while target.pids and time.monotonic() < deadline:
        before = cpu_s(*target.pids)
        time.sleep(CALM_LOOK_S)
        if cpu_s(*target.pids) - before < CALM_SHARE * CALM_LOOK_S:
            return


def settle() -> None:
    """Wait until the kernel has little left to write, so that one round's data does not slow the next."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while _unwritten_kb() > SETTLED_KB and time.monotonic() < deadline:
        time.sleep(0.1)


def _unwritten_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("Dirty", "Writeback"))
