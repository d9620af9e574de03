"""How long the event loop is busy with one piece of work, measured by a recurring timer.

A timer that runs a second late means that for a second the broker read and answered nothing. How late it runs depends
on the whole machine. The CPU time that the loop's thread used since the last turn does not, and shows what the broker
itself did.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from time import thread_time

from penstock.clock import Clock

_INTERVAL_S = 0.05


class Durations:
    """A histogram, in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total = 0.0

    def count(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class LoopMonitor:
    """How late the timer ran, and how much CPU time the loop used between two turns; tells a listener at each turn that
    the loop is alive.
    """

    def __init__(self, clock: Clock, on_turn: Callable[[], None] = lambda: None) -> None:
        self.lag = Durations((0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
        self.busy = Durations((0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0))
        self._clock = clock
        self._on_turn = on_turn
        self._due_ms = 0.0
        self._used_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._used_s = thread_time()
        self._set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        self._due_ms = self._clock.monotonic_ms() + _INTERVAL_S * 1000
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._turn)

    def _turn(self) -> None:
        self.lag.count(max(0.0, self._clock.monotonic_ms() - self._due_ms) / 1000)
        before_s, self._used_s = self._used_s, thread_time()
        self.busy.count(self._used_s - before_s)
        self._on_turn()
        self._set()
