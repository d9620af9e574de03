"""The bound on memory for large requests, over all connections.

A connection begins with a small buffer of its own. What a larger request needs beyond that comes out of one allowance.
When it is used up, connections wait in line for others to finish, and clients see a slow network.

A large request gets memory bit by bit, as it arrives. So all connections that hold some may be in line for more. Then
the one that holds most goes on beyond the limit: one request at most exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BASE_BYTES = 16 * 1024
"""What a connection may hold without taking from the allowance."""

Granted = Callable[[int], None]


class _Waiting(NamedTuple):
    wanted: int
    held: int


class Allowance:
    """Bytes for large requests, handed out in the order of asking."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used = 0
        self._waiting: dict[Granted, _Waiting] = {}
        self._held_in_line = 0

    @property
    def is_short(self) -> bool:
        """Whether a connection waits: others should give back what they do not need now."""
        return bool(self._waiting)

    def take(self, count: int) -> bool:
        """Whether `count` bytes were granted; more than the whole limit is granted when nothing else is in use."""
        if self.used + count <= self._limit or self.used == 0:
            self.used += count
            return True
        return False

    def wait(self, count: int, held: int, granted: Granted) -> None:
        """Calls `granted` with `count` once so many bytes are granted to a connection that holds `held` already."""
        self._waiting[granted] = _Waiting(count, held)
        self._held_in_line += held
        self._serve()

    def forget(self, granted: Granted) -> None:
        """Takes one that no longer waits out of the line."""
        if granted in self._waiting:
            self._held_in_line -= self._waiting.pop(granted).held
            self._serve()

    def give_back(self, count: int) -> None:
        self.used -= count
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            granted, first = next(iter(self._waiting.items()))
            if self.used and self.used + first.wanted > self._limit:
                if self.used > self._held_in_line:
                    return  # a connection that is not in line will give back
                granted, first = max(self._waiting.items(), key=lambda item: item[1].held)
            del self._waiting[granted]
            self._held_in_line -= first.held
            self.used += first.wanted
            granted(first.wanted)
