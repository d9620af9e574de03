"""How much all connections together may hold of requests that are not complete or not answered.

A connection begins with a small buffer of its own. What it needs beyond that for a large request comes out of one
allowance; when that is used up, connections wait in line for others to finish, and the peers feel it as a slow network.

A large request is given memory bit by bit, as it arrives. So it can come to pass that everybody who holds some is in
line for more: then the one that is furthest goes on beyond the limit, which is thus exceeded by one request at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BASE_BYTES = 16 * 1024
"""What a connection may hold without asking."""

Granted = Callable[[int], None]


class _Wish(NamedTuple):
    wanted: int
    held: int


class Allowance:
    """Bytes for large requests, handed out in the order of asking."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used = 0
        self._waiting: dict[Granted, _Wish] = {}
        self._held_in_line = 0

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

    def wait(self, count: int, held: int, granted: Granted) -> None:
        """Calls `granted` with `count` when so many bytes have been granted to one who holds `held` already."""
        self._waiting[granted] = _Wish(count, held)
        self._held_in_line += held
        self._serve()

    def forget(self, granted: Granted) -> None:
        """Whoever waited no longer does: he must not hold up those behind him."""
        if granted in self._waiting:
            self._held_in_line -= self._waiting.pop(granted).held
            self._serve()

    def give_back(self, count: int) -> None:
        self.used -= count
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            granted, wish = next(iter(self._waiting.items()))
            if self.used and self.used + wish.wanted > self._limit:
                if self.used > self._held_in_line:
                    return  # somebody who is not in line will give back
                granted, wish = max(self._waiting.items(), key=lambda item: item[1].held)
            del self._waiting[granted]
            self._held_in_line -= wish.held
            self.used += wish.wanted
            granted(wish.wanted)
