"""Counters of the messages that a client sent and could not send."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Numbers of one client since its start; `buffered` and `spilled` are current."""

    sent: int = 0
    """Messages that became durable in the cluster."""
    failed: int = 0
    """Messages whose send failed, including dropped ones."""
    dropped: int = 0
    """Messages that `Drop` gave up because the cluster was unreachable."""
    refused: int = 0
    """Spilled messages that the cluster refused; `refused.spill` in the spill folder keeps them."""
    buffered: int = 0
    """Messages in memory that are not answered yet."""
    spilled: int = 0
    """Messages on disk that are not sent yet."""


class SendTally:
    """Counts messages. Thread-safe."""

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
