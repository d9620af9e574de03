"""Parked fetches: each waits until enough has been appended, its time is over, or the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.replication.partition import Partition
from penstock.replication.waiters import Waiter


class ParkedFetch:
    """One fetch that waits until enough has been appended."""

    __slots__ = ("_done", "_missing_bytes")

    def __init__(self, done: asyncio.Future[None], missing_bytes: int) -> None:
        self._done = done
        self._missing_bytes = missing_bytes

    def grew(self, appended_bytes: int) -> None:
        self._missing_bytes -= appended_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._done.done():
            self._done.set_result(None)


class ParkedFetches:
    """All fetches that are parked, up to a limit."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._parked: set[ParkedFetch] = set()
        self.is_closing = False

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def is_full(self) -> bool:
        return len(self._parked) >= self._places

    def close(self) -> None:
        """Wakes all of them: each is answered with what there is."""
        self.is_closing = True
        for waiter in tuple(self._parked):
            waiter.wake()

    async def wait(self, register: Callable[[ParkedFetch], None], missing_bytes: int, deadline: float) -> None:
        """Returns when `register` has had the fetch told of so many bytes, or at a time of the event loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        parked = ParkedFetch(done, missing_bytes)
        timer = loop.call_at(deadline, parked.wake)
        self._parked.add(parked)
        register(parked)
        try:
            await done
        finally:
            timer.cancel()
            self._parked.discard(parked)

    async def wait_for(
        self,
        partitions: Sequence[Partition],
        park: Callable[[Partition, Waiter], None],
        missing_bytes: int,
        deadline: float,
    ) -> None:
        """Like `wait`, for so many bytes in these partitions together."""
        parked_here: list[ParkedFetch] = []

        def register(parked: ParkedFetch) -> None:
            parked_here.append(parked)
            for partition in partitions:
                park(partition, parked)

        try:
            await self.wait(register, missing_bytes, deadline)
        finally:
            for parked in parked_here:
                for partition in partitions:
                    partition.unpark(parked)
