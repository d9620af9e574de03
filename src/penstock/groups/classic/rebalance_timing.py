"""Deadlines of a rebalance of a classic group."""

from __future__ import annotations


class RebalanceTiming:
    """When the join phase of a rebalance ends, and the wait for assignments after it."""

    def __init__(self, initial_delay_ms: int) -> None:
        self._initial_delay_ms = initial_delay_ms
        self._is_initial = False
        """It is the first one of a group that was empty: it only waits for more members to come."""
        self._until_ms = 0
        self._gather_until_ms = 0
        """An initial one ends then; everyone who comes moves it, at most to the other limit."""
        self._sync_until_ms: int | None = None
        """The coordinator removes members that have not requested their assignment by then."""

    def begin(self, now_ms: int, longest_ms: int, *, is_initial: bool) -> None:
        self._is_initial = is_initial
        self._gather_until_ms = now_ms + self._initial_delay_ms
        self._until_ms = now_ms + longest_ms
        if is_initial:
            self._until_ms = max(self._until_ms, self._gather_until_ms)
        self._sync_until_ms = None

    def somebody_came(self, now_ms: int) -> None:
        if self._is_initial:
            self._gather_until_ms = min(now_ms + self._initial_delay_ms, self._until_ms)

    def wait_longer(self, now_ms: int, longest_ms: int) -> None:
        self._until_ms = now_ms + max(1, longest_ms)

    def is_over(self, now_ms: int, *, all_are_here: bool) -> bool:
        if self._is_initial:
            return now_ms >= self._gather_until_ms
        return all_are_here or now_ms >= self._until_ms

    def complete(self, now_ms: int, longest_ms: int) -> None:
        self._is_initial = False
        self._sync_until_ms = now_ms + longest_ms

    def ends_sync(self, now_ms: int) -> bool:
        """Whether the time to ask for assignments is over; says so once."""
        if self._sync_until_ms is None or now_ms < self._sync_until_ms:
            return False
        self._sync_until_ms = None
        return True

    def due_ms(self, *, is_under_way: bool) -> list[int]:
        """When a rebalance that is under way is over at the latest, and when the wait for assignments is."""
        times = [] if self._sync_until_ms is None else [self._sync_until_ms]
        if is_under_way:
            times.append(self._gather_until_ms if self._is_initial else self._until_ms)
        return times
