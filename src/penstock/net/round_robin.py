"""Connections with large requests take turns, with all other connections in between.

What arrives in large frames takes long: to receive, to check, to write. A connection with such frames handles one of
them when it is its turn. Between two of these turns the event loop looks at all sockets, and does what they and the
turn before have set off. So a client with small requests waits for one large one, however many clients send large ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class RoundRobin:
    """The connections that want a turn, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_called = False

    def ask(self, turn: Callable[[], None]) -> None:
        """Calls `turn` when the others have had theirs."""
        self._waiting.append(turn)
        self._call()

    def _call(self) -> None:
        if not self._is_called and self._waiting:
            self._is_called = True
            self._loop.call_soon(self._let_others)

    def _let_others(self) -> None:
        # First handle the sockets that became ready during the last turn, then what that has set off.
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_called = False
        turn = self._waiting.popleft()
        try:
            turn()
        finally:
            self._call()
