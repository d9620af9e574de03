"""How long this broker may act as a leader without having heard that it still is; see "Leases" in `docs/cluster.md`."""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock
from penstock.replication.leadership import Leadership


class Tenure:
    """The broker's lease, as its partitions see it."""

    def __init__(self, clock: Clock, lease_until_ms: Callable[[], float], followed_within_ms: float) -> None:
        """`followed_within_ms`: a follower that was not heard from for so long may have become a leader."""
        self._clock = clock
        self._lease_until_ms = lease_until_ms
        self._followed_within_ms = followed_within_ms

    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def holds_for(self, leadership: Leadership) -> bool:
        """Whether no other leader of the partition can have begun."""
        return leadership.leads(self._clock.monotonic_ms(), self._lease_until_ms(), self._followed_within_ms)
