"""How many messages a client has sent and could not send."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Of one client, since it was made; `buffered` and `spilled` are those of now."""

    sent: int = 0
    """Messages that became durable in the cluster."""
    failed: int = 0
    """Messages of which the application was told that they were not sent; the dropped ones included."""
    dropped: int = 0
    """Messages that `Drop` has given up because the cluster was away."""
    refused: int = 0
    """Spilled messages that the cluster has refused for good; they lie in `refused.spill` in the spill folder."""
    buffered: int = 0
    """Messages in memory that have not been answered yet."""
    spilled: int = 0
    """Messages on disk that have not been sent yet."""


class Tally:
    """Counts; any thread may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = self.failed = self.dropped = self.refused = 0

    def count(self, *, sent: int = 0, failed: int = 0, dropped: int = 0, refused: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.failed += failed
            self.dropped += dropped
            self.refused += refused

    def counters(self, buffered: int, spilled: int) -> Counters:
        with self._lock:
            return Counters(
                sent=self.sent,
                failed=self.failed,
                dropped=self.dropped,
                refused=self.refused,
                buffered=buffered,
                spilled=spilled,
            )
