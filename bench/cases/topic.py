"""A topic for one measurement: created, and deleted again together with its data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.client.dialects import dialect
from bench.target import Target

_NUMBERS = itertools.count(1)
SETTLE_LIMIT_S = 4.0
SETTLED_KB = 100_000


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """A topic nobody used before."""
    name = f"bench-{next(_NUMBERS)}"
    speech = dialect(target.protocol)
    speech.create(target.address, name, partitions)
    try:
        yield name
    finally:
        speech.delete(target.address, name)


def settle() -> None:
    """Wait until the kernel has little left to write, so that one round's data does not slow the next."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while _unwritten_kb() > SETTLED_KB and time.monotonic() < deadline:
        time.sleep(0.1)


def _unwritten_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("Dirty", "Writeback"))
