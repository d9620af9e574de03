"""Flow control of a subscription: its rate, its messages in flight, and when to pause partitions. Pure: the caller
passes the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_BURST_MS = 100
"""An unused allowance of up to this long may be used at once: the time is not checked every millisecond."""

PAUSE_AFTER_MS = 500
"""How long a full subscription waits for room before it pauses: pausing discards what librdkafka has prefetched."""


class RateLimit:
    """A token bucket."""

    def __init__(self, per_second: float | None, now_ms: float) -> None:
        self._per_ms = None if per_second is None else per_second / 1000
        self._burst = max(1.0, (self._per_ms or 0) * _BURST_MS)
        self._tokens = 1.0
        self._refilled_ms = now_ms

    def allowed(self, now_ms: float, wanted: int) -> int:
        """How many of the wanted messages may be taken now."""
        if self._per_ms is None:
            return wanted
        self._tokens = min(self._burst, self._tokens + (now_ms - self._refilled_ms) * self._per_ms)
        self._refilled_ms = now_ms
        return min(wanted, int(self._tokens))

    def take(self, count: int) -> None:
        """Count messages as taken, at most as many as were allowed."""
        if self._per_ms is not None:
            self._tokens -= count

    def wait_ms(self) -> float:
        """How long until the next message is allowed."""
        if self._per_ms is None or self._tokens >= 1:
            return 0
        return (1 - self._tokens) / self._per_ms


class FlowDecision(Enum):
    """What to do next with the partitions."""

    MORE = "more"
    """There is room: poll for messages."""
    WAIT = "wait"
    """Full: wait a little for room."""
    PAUSE = "pause"
    """Still full: pause all partitions, then poll to keep the membership."""
    KEEP = "keep"
    """Paused: keep polling."""
    RESUME = "resume"
    """Half of the messages are done: resume, then poll for messages."""


@dataclass(slots=True)
class InFlightLimit:
    """Decides whether more messages are wanted; at most `limit` are in flight."""

    limit: int
    is_paused: bool = False
    _full_since_ms: float | None = None

    def room(self, in_flight: int) -> int:
        return max(0, self.limit - in_flight)

    def decide(self, in_flight: int, now_ms: float) -> FlowDecision:
        if self.is_paused:
            if in_flight > self.limit // 2:
                return FlowDecision.KEEP
            self.is_paused, self._full_since_ms = False, None
            return FlowDecision.RESUME
        if in_flight < self.limit:
            self._full_since_ms = None
            return FlowDecision.MORE
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        if now_ms - self._full_since_ms < PAUSE_AFTER_MS:
            return FlowDecision.WAIT
        self.is_paused = True
        return FlowDecision.PAUSE
