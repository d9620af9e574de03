"""How much all connections together may hold of requests that are not complete or not answered.

A connection begins with a small buffer of its own. What it needs beyond that for a large request comes out of one
allowance; when that is used up, connections wait in line for others to finish, and the peers feel it as a slow network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

BASE_BYTES = 16 * 1024
"""What a connection may hold without asking."""


class Allowance:
    """Bytes for large requests, handed out in the order of asking."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_short(self) -> bool:
        """Somebody waits: whoever does not need his share now should give it back."""
        return bool(self._waiting)

    def take(self, count: int) -> bool:
        """True if `count` bytes were granted; one that is larger than everything is, when nothing else is out."""
        if self.used + count <= self._limit or self.used == 0:
            self.used += count
            return True
        return False

    def wait(self, count: int, retry: Callable[[], None]) -> None:
        """Calls `retry` when there may be room for `count` bytes."""
        self._waiting.append((count, retry))

    def give_back(self, count: int) -> None:
        self.used -= count
        while self._waiting and (self.used + self._waiting[0][0] <= self._limit or self.used == 0):
            _, retry = self._waiting.popleft()
            retry()
