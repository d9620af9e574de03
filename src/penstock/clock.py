"""The only place that asks what time it is.

Everything that decides by time is handed a `Clock`; tests hand in `ManualClock` and move it by hand.
"""

from __future__ import annotations

import time
from typing import Protocol

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A lease goes on while the machine is suspended; on Linux CLOCK_MONOTONIC does not."""


class Clock(Protocol):
    """Wall time for what people see, monotonic time for durations; both in milliseconds."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back, and goes on while the machine is suspended."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_STEADY) / 1e6


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump(self, ms: int) -> None:
        """The wall clock was set ahead, or back; no time has passed."""
        self._now_ms += ms
