"""Requests that wait for a partition: fetches until there is more to read, appends until all in-sync replicas have
them, and answers until it is certain that this broker leads.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from penstock.errors import ApiError, Code

PLENTY = 1 << 62
"""More bytes than any fetch waits for."""

_FEW = 64
"""So many appends that are no longer waited for may be kept."""

_numbers = count()


class Waiter(Protocol):
    """A fetch that hears when a partition has more to read, or is gone."""

    def grew(self, appended_bytes: int) -> None: ...


class FollowerWaiter(Waiter, Protocol):
    """A follower whose fetch may be waiting for more."""

    def answer_now(self, since_ms: float) -> None:
        """Answer its fetch even if there is nothing new, so that it asks again; unless it has been answered since."""
        ...


class Parked:
    """Fetches, by what they wait for."""

    __slots__ = ("followers", "readers", "stable_readers")

    def __init__(self) -> None:
        self.readers: set[Waiter] = set()
        """Wait for the high watermark to rise."""
        self.stable_readers: set[Waiter] = set()
        """Wait for the last stable offset to rise."""
        self.followers: set[FollowerWaiter] = set()
        """Wait for the end of the log to rise."""

    def discard(self, waiter: Waiter) -> None:
        self.readers.discard(waiter)
        self.stable_readers.discard(waiter)

    def discard_follower(self, waiter: FollowerWaiter) -> None:
        self.followers.discard(waiter)

    def wake(self) -> None:
        """All of them have to look again."""
        for waiter in (*self.readers, *self.stable_readers, *self.followers):
            waiter.grew(PLENTY)

    def wake_followers(self, appended_bytes: int = PLENTY) -> None:
        for waiter in tuple(self.followers):
            waiter.grew(appended_bytes)


class Unacknowledged:
    """Appends that wait for the high watermark to pass them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """By offset, a heap; some may be waited for no more."""
        self._sweep_at = _FEW
        """With so many in the heap, those that are waited for no more are taken out."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, offset: int, within_ms: int | None = None) -> None:
        """ApiError if the role ends first, or the time."""
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[None] = loop.create_future()
        if len(self._waiting) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._waiting, (offset, next(_numbers), passed))
        if within_ms is None:
            await passed
            return
        timer = loop.call_later(max(0, within_ms) / 1000, _give_up, passed)
        try:
            await passed
        finally:
            timer.cancel()

    def pass_below(self, high_watermark: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            passed = heapq.heappop(waiting)[2]
            if not passed.done():
                passed.set_result(None)

    def _sweep(self) -> None:
        """While the high watermark stands still, requests time out and come again: only those that wait are kept."""
        self._waiting = [each for each in self._waiting if not each[2].done()]
        heapq.heapify(self._waiting)
        self._sweep_at = 2 * len(self._waiting) + _FEW

    def give_up(self) -> None:
        """The role in which they were appended has ended."""
        waiting, self._waiting = self._waiting, []
        for _, _, passed in waiting:
            if not passed.done():
                passed.set_exception(not_confirmed())


class Confirmations:
    """Answers that wait until every in-sync follower has fetched again."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], float] = {}
        """Since when the followers have to have followed."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def latest_ms(self) -> float:
        return max(self._waiting.values())

    async def wait(self, since_ms: float, within_ms: float) -> None:
        """ApiError if the role ends first, or the time."""
        loop = asyncio.get_running_loop()
        confirmed: asyncio.Future[None] = loop.create_future()
        self._waiting[confirmed] = since_ms
        timer = loop.call_later(within_ms / 1000, _refuse, confirmed)
        try:
            await confirmed
        finally:
            timer.cancel()
            self._waiting.pop(confirmed, None)

    def confirm(self, is_followed: Callable[[float], bool]) -> None:
        for confirmed, since_ms in tuple(self._waiting.items()):
            if is_followed(since_ms):
                del self._waiting[confirmed]
                if not confirmed.done():
                    confirmed.set_result(None)

    def give_up(self) -> None:
        """The role in which they began to wait has ended."""
        waiting, self._waiting = self._waiting, {}
        for confirmed in waiting:
            _refuse(confirmed)


def _refuse(confirmed: asyncio.Future[None]) -> None:
    if not confirmed.done():
        confirmed.set_exception(another_leads())


def _give_up(passed: asyncio.Future[None]) -> None:
    if not passed.done():
        reason = "the batch is in the log, but not all in-sync replicas have it yet"
        passed.set_exception(ApiError(Code.REQUEST_TIMED_OUT, reason))


def not_confirmed() -> ApiError:
    """The answer for a batch that was appended by a leader that leads no more: its successor may have it or not.

    Not NOT_LEADER_OR_FOLLOWER: librdkafka takes that for "not written" and, after an abort, uses the sequence numbers
    for other records.
    """
    return ApiError(
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        "the batch was appended, but another replica is the leader now",
    )


def another_leads() -> ApiError:
    return ApiError(Code.NOT_LEADER_OR_FOLLOWER, "another replica is the leader now")
