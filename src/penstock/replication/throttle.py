"""How fast new replicas are copied: a bucket that fills with time, from which a fetcher draws before it requests
records.

Pure: the time comes in. What an answer held is known only afterwards, so what was drawn is settled then; a batch that
is larger than what was drawn leaves a debt, which time pays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf

FULL_S = 0.25
"""A bucket holds what comes in that time: a fetcher cannot save up more and crowd others out of a line later."""


class Throttle:
    """One limit: bytes a second, or None for no limit; it may change at any time."""

    __slots__ = ("_filled_s", "_level", "_rate")

    def __init__(self, rate: Callable[[], int | None]) -> None:
        self._rate = rate
        self._level = inf
        self._filled_s = 0.0

    def room(self, wanted: int, now_s: float) -> int:
        """How many of the wanted bytes may be requested now; 0 if it is better to wait for more."""
        level, least = self._fill(now_s), self._least(wanted)
        return int(min(level, wanted)) if level >= least else 0

    def take(self, count: int) -> None:
        """Draws so many bytes; a negative number puts them back."""
        self._level -= count

    def wait_s(self, wanted: int, now_s: float) -> float:
        """How long it takes until there is room."""
        missing, rate = self._least(wanted) - self._fill(now_s), self._rate()
        if missing <= 0 or rate is None:
            return 0.0
        return missing / rate if rate else inf

    def _fill(self, now_s: float) -> float:
        rate = self._rate()
        if rate is None:
            self._level = inf
        else:
            self._level = min(self._level + rate * (now_s - self._filled_s), _full(rate))
        self._filled_s = now_s
        return self._level

    def _least(self, wanted: int) -> float:
        """Less than half a bucket is not worth a request; nor is nothing, which is all that a rate of 0 gives."""
        rate = self._rate()
        return wanted if rate is None else max(1.0, min(wanted, _full(rate) / 2))


def _full(rate: int) -> float:
    return max(1.0, rate * FULL_S) if rate else 0.0


def draw(throttles: Collection[Throttle], wanted: int, now_s: float) -> int:
    """What all of them have room for, drawn from each."""
    room = min(throttle.room(wanted, now_s) for throttle in throttles)
    for throttle in throttles:
        throttle.take(room)
    return room


def settle(throttles: Collection[Throttle], drawn: int, used: int) -> None:
    """Of what was drawn so much was needed, or more."""
    for throttle in throttles:
        throttle.take(used - drawn)
