"""Bounds on how many requests are handled at once."""

from __future__ import annotations

import asyncio
from collections import deque


class RequestLimit:
    """A bound on requests being handled at once; further ones wait for their turn, in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_plentiful(self) -> bool:
        """Whether half of the turns are free: one connection may have several then."""
        return 2 * self._free >= self._limit

    def take_now(self) -> bool:
        """Whether there was a free turn; a caller that got one gives it back."""
        if self._free > 0:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Returns when it is the turn of a request for which there was none; it gives it back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            raise

    async def __aenter__(self) -> None:
        if not self.take_now():
            await self.wait()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
