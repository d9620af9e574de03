"""Who waits for a partition: fetches that are told when there is more, and appends until everybody in sync has them."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Protocol

from penstock.errors import ApiError, Code

PLENTY = 1 << 62
"""More bytes than anybody waits for."""

_numbers = count()


class Waiter(Protocol):
    """Somebody who is told when a partition has more to read, or is gone."""

    def grew(self, appended_bytes: int) -> None: ...


class Parked:
    """Fetches, by what they wait for."""

    __slots__ = ("followers", "readers", "stable_readers")

    def __init__(self) -> None:
        self.readers: set[Waiter] = set()
        """Wait for the high watermark to rise."""
        self.stable_readers: set[Waiter] = set()
        """Wait for the last stable offset to rise."""
        self.followers: set[Waiter] = set()
        """Wait for the end of the log to rise."""

    def discard(self, waiter: Waiter) -> None:
        for each in (self.readers, self.stable_readers, self.followers):
            each.discard(waiter)

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
        """By offset, a heap."""

    async def wait(self, offset: int, within_ms: int | None = None) -> None:
        """ApiError if the role ends first, or the time."""
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[None] = loop.create_future()
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

    def give_up(self) -> None:
        """The role in which they were appended has ended."""
        waiting, self._waiting = self._waiting, []
        for _, _, passed in waiting:
            if not passed.done():
                passed.set_exception(another_leads())


def _give_up(passed: asyncio.Future[None]) -> None:
    if not passed.done():
        reason = "the batch is in the log, but not all that are in sync have it yet"
        passed.set_exception(ApiError(Code.REQUEST_TIMED_OUT, reason))


def another_leads() -> ApiError:
    return ApiError(Code.NOT_LEADER_OR_FOLLOWER, "another replica leads by now")
