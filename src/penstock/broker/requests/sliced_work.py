"""Long requests, done in slices.

A request that names or asks for very many things would block the event loop. So its decoding, its handler and its
encoding give the loop back every few milliseconds. However many such requests there are, one turn of the loop does one
slice of one of them.

Memory has these bounds: `limits.request_entries` for what one request names, `limits.in_flight_entries` for what all
large requests name together, `limits.answer_entries` for what one response lists, and `limits.long_answers` for how
many long responses are made at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from time import perf_counter
from typing import TypeVar

from penstock.broker.requests.request_limits import RequestLimit
from penstock.errors import ProtocolError
from penstock.protocol.steps import Steps

T = TypeVar("T")

SLICE_S = 0.005
_SHORT_ANSWER = 1000
"""An answer with so few entries needs no turn."""
_PLENTY = 1 << 62


class Slices:
    """Gives long requests one slice each in turn, and lets all others run in between."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_waking = False

    async def next(self) -> None:
        """Returns when it is this one's turn again, a turn of the event loop later at the earliest."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon(self._wake_one, loop)
        await turn

    def _wake_one(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._wake_one, loop)
        else:
            self._is_waking = False


class Work:
    """The work on one request: when it has to pause, and how long its answer has become."""

    __slots__ = ("_entries", "_long_answers", "_max_entries", "_slices", "_until", "has_paused", "is_long")

    def __init__(
        self, slices: Slices | None = None, max_entries: int = _PLENTY, long_answers: RequestLimit | None = None
    ) -> None:
        self._slices = slices or Slices()
        self._max_entries = max_entries
        self._long_answers = long_answers
        self._entries = 0
        self._until = perf_counter() + SLICE_S
        self.has_paused = False
        self.is_long = False
        """It has one of the turns of long answers."""

    async def pause(self) -> None:
        """Gives the loop back if this slice is over."""
        if perf_counter() >= self._until:
            await self._slices.next()
            self._until = perf_counter() + SLICE_S
            self.has_paused = True

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with pauses between them."""
        for item in items:
            yield item
            if perf_counter() >= self._until:
                await self.pause()

    async def through(self, steps: Steps[T]) -> T:
        """The result of something that is coded step by step, with pauses."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            await self.pause()

    async def grow(self, entries: int) -> None:
        """The answer gets so many entries more. Waits for a turn if it becomes long, and pauses; ProtocolError if it
        becomes too long.
        """
        self._entries += entries
        if self._entries > self._max_entries:
            raise ProtocolError(
                f"an answer of more than {self._max_entries} entries (limits.answer_entries): ask for less at once"
            )
        if self._entries > _SHORT_ANSWER and not self.is_long and self._long_answers is not None:
            await self._long_answers.__aenter__()
            self.is_long = True
        await self.pause()

    async def close(self) -> None:
        """The answer is there."""
        if self.is_long and self._long_answers is not None:
            self.is_long = False
            await self._long_answers.__aexit__()


class Shares:
    """A bound on the entries of requests that are being handled; a request that would exceed it waits in line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
        """Returns when `count` are granted; more than the limit is granted when no other request has any."""
        if not self._waiting and self._has(count):
            self.used += count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(count)
            else:
                turn.cancel()
                self._serve()
            raise

    def give_back(self, count: int) -> None:
        self.used -= count
        self._serve()

    def _has(self, count: int) -> bool:
        return self.used == 0 or self.used + count <= self._limit

    def _serve(self) -> None:
        while self._waiting:
            count, turn = self._waiting[0]
            if not turn.done():
                if not self._has(count):
                    return
                self.used += count
                turn.set_result(None)
            self._waiting.popleft()
