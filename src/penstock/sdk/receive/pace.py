"""How fast a subscription takes messages: so many a second, so many in hand, and when its partitions are paused.

Pure: time is handed in, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_BURST_MS = 100
"""What was not used for so long may be used at once: nobody looks at the clock every millisecond."""

PAUSE_AFTER_MS = 500
"""A subscription that has enough in hand waits so long for room before it pauses: pausing throws away what the client
library has fetched ahead."""


class Rate:
    """So many a second, as an allowance that grows with time."""

    def __init__(self, per_second: float | None, now_ms: float) -> None:
        self._per_ms = None if per_second is None else per_second / 1000
        self._most = max(1.0, (self._per_ms or 0) * _BURST_MS)
        self._left = 1.0
        self._seen_ms = now_ms

    def allowed(self, now_ms: float, wanted: int) -> int:
        """How many may be taken now, of so many that are wanted."""
        if self._per_ms is None:
            return wanted
        self._left = min(self._most, self._left + (now_ms - self._seen_ms) * self._per_ms)
        self._seen_ms = now_ms
        return min(wanted, int(self._left))

    def take(self, count: int) -> None:
        """So many were taken, at most as many as were allowed."""
        if self._per_ms is not None:
            self._left -= count

    def wait_ms(self) -> float:
        """How long until the next one is allowed."""
        if self._per_ms is None or self._left >= 1:
            return 0
        return (1 - self._left) / self._per_ms


class Wanted(Enum):
    """What to do next with the partitions."""

    MORE = "more"
    """There is room: ask for messages."""
    WAIT = "wait"
    """Enough is in hand: wait a little for room."""
    PAUSE = "pause"
    """That has lasted: pause everything, then poll on, so that the membership is kept."""
    KEEP = "keep"
    """Paused: poll on."""
    RESUME = "resume"
    """Half of it is done: resume, then ask for messages."""


@dataclass(slots=True)
class Gate:
    """Whether more messages are wanted; there are at most `in_flight` in hand."""

    in_flight: int
    is_paused: bool = False
    _full_since_ms: float | None = None

    def room(self, in_hand: int) -> int:
        return max(0, self.in_flight - in_hand)

    def decide(self, in_hand: int, now_ms: float) -> Wanted:
        if self.is_paused:
            if in_hand > self.in_flight // 2:
                return Wanted.KEEP
            self.is_paused, self._full_since_ms = False, None
            return Wanted.RESUME
        if in_hand < self.in_flight:
            self._full_since_ms = None
            return Wanted.MORE
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        if now_ms - self._full_since_ms < PAUSE_AFTER_MS:
            return Wanted.WAIT
        self.is_paused = True
        return Wanted.PAUSE
