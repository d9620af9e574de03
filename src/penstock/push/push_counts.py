"""Counts of messages, taken from the hooks of the subscription."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCounts:
    """Since the beginning."""

    received: int
    delivered: int
    """Accepted by the endpoint."""
    retried: int
    """Failed deliveries that are retried."""
    dead_letters: int
    last_error: str | None


class PushCounter(Hooks):
    """Hooks are called in several threads; each kind is counted under its own name, and read as it is."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last_error: str | None = None

    def received(self, message: Message) -> None:
        # A retry is a message that has been received before.
        if message.attempt == 1:
            self._counts["received"] += 1

    def handled(self, message: Message, seconds: float) -> None:
        self._counts["delivered"] += 1

    def retried(self, message: Message, error: str, after_ms: int) -> None:
        self._counts["retried"] += 1
        self._last_error = error

    def dead_lettered(self, message: Message, error: str) -> None:
        self._counts["dead_letters"] += 1
        self._last_error = error

    def counts(self) -> PushCounts:
        found = self._counts
        return PushCounts(
            received=found["received"],
            delivered=found["delivered"],
            retried=found["retried"],
            dead_letters=found["dead_letters"],
            last_error=self._last_error,
        )
