"""Brings a broker to its running speed before anything is measured: a JVM compiles what it runs often."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.cases.throughput import Throughput
from bench.cases.unbatched import Unbatched
from bench.target import Target

MEGABYTES = 300
GAIN = 1.05  # a round that is not this much better than the best so far counts as no gain
STEADY_ROUNDS = 3


def warm_up(target: Target, limit_s: float, tell: Callable[[str], None]) -> int:
    """Produce, consume and small requests until three rounds in a row bring no gain, or time is up.

    Returns the megabytes produced.
    """
    if limit_s <= 0:
        return 0
    deadline = time.monotonic() + limit_s
    has_tls = target.tls is not None  # what is measured there
    best, steady, rounds = 0.0, 0, 0
    loads = [
        Throughput(size=1024, partitions=count, megabytes=MEGABYTES, rounds=1, has_tls=has_tls) for count in (1, 8)
    ]
    tiny = Unbatched(in_flight=5, seconds=1, rounds=1)
    key = loads[0].measures()[0].key
    while time.monotonic() < deadline and steady < STEADY_ROUNDS:
        speed = loads[0].run(target)[key]
        loads[1].run(target)
        tiny.run(target)
        rounds += 1
        steady = steady + 1 if speed < best * GAIN else 0
        best = max(best, speed)
        tell(f"warming up {target.name}: round {rounds}, {speed:.0f} MB/s")
    return rounds * MEGABYTES * len(loads)
