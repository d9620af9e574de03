"""The bound on TLS handshakes that are in progress.

A handshake takes about a millisecond of the event loop, and those that are ready at the same time run in one turn of
it. So only some are in progress, in total and from one address. Others wait, and nothing is read from them: a flood
from one address delays its own connections, and requests of all others find their turn in between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

Begin = Callable[[], None]


class Handshakes:
    """Begins them in the order of asking, address by address."""

    def __init__(self, limit: int, limit_per_host: int) -> None:
        self._limit = limit
        self._limit_per_host = limit_per_host
        self.in_progress = 0
        self._by_host: Counter[str] = Counter()
        self._waiting: dict[str, deque[Begin]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def begin(self, host: str, begin: Begin) -> bool:
        """Calls `begin` when it may take place; whether that was at once."""
        if host not in self._waiting and self._has_room(host):
            self._start(host, begin)
            return True
        self._waiting.setdefault(host, deque()).append(begin)
        return False

    def end(self, host: str) -> None:
        """One is over, whatever its outcome."""
        self.in_progress -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]
        self._begin_next()

    def forget(self, host: str, begin: Begin) -> None:
        """Takes one that no longer waits out of the line."""
        waiting = self._waiting.get(host)
        if waiting is not None and begin in waiting:
            waiting.remove(begin)
            if not waiting:
                del self._waiting[host]

    def _begin_next(self) -> None:
        host = next((host for host in self._waiting if self._has_room(host)), None)
        if host is None:
            return
        # To the end of the line: the next turn is another address's.
        waiting = self._waiting.pop(host)
        begin = waiting.popleft()
        if waiting:
            self._waiting[host] = waiting
        self._start(host, begin)

    def _start(self, host: str, begin: Begin) -> None:
        self.in_progress += 1
        self._by_host[host] += 1
        begin()

    def _has_room(self, host: str) -> bool:
        return self.in_progress < self._limit and self._by_host[host] < self._limit_per_host
