"""The broker's lease as its partitions use it: how long a leader may act without hearing that it still leads.

See "Leases" in `docs/internals/cluster.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.clock import Clock
from penstock.replication.leadership import Leadership


class LeaderLease:
    """Whether a partition of this broker may still act as its leader."""

    def __init__(self, clock: Clock, lease_until_ms: Callable[[], float], followed_within_ms: float) -> None:
        """`followed_within_ms`: a follower that was not heard from for so long may have become a leader."""
        self._clock = clock
        self._lease_until_ms = lease_until_ms
        self._followed_within_ms = followed_within_ms

    @property
    def followed_within_ms(self) -> float:
        return self._followed_within_ms

    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def holds_for(self, leadership: Leadership) -> bool:
        """Whether to act as its leader: no other can have begun, or not longer ago than `followed_within_ms`."""
        return leadership.leads(self._clock.monotonic_ms(), self._lease_until_ms(), self._followed_within_ms)

    def is_certain_for(self, leadership: Leadership) -> bool:
        """Whether no other leader of the partition can have begun by now."""
        return leadership.is_certain(self._clock.monotonic_ms(), self._lease_until_ms())
