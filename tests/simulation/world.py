"""Simulated time: one queue of events, one source of chance, and the processes that events happen to.

The same seed gives the same run, to the last event. A process that is down never sees an event that was meant for it;
one that is paused sees them all at once when it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


class Node:
    """A process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.is_paused = False
        self.incarnation = 0
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What happened while it was paused."""

    def crash(self) -> None:
        self.is_up = self.is_paused = False
        self.incarnation += 1
        self.backlog.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        backlog, self.backlog = self.backlog, []
        incarnation = self.incarnation
        for happens, arguments in backlog:
            if self.incarnation == incarnation:
                happens(*arguments)


class World:
    """The clock and what is going to happen."""

    def __init__(self, seed: int, *, is_traced: bool) -> None:
        self.random = Random(seed)
        self.now_ms = 0.0
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = [] if is_traced else None
        self.events = 0
        self._queue: list[tuple[float, int, Node | None, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_ms: float, node: Node | None, happens: Callable[..., None], *arguments: Any) -> None:
        """Something happens to a process as it is now, or to the world."""
        self.events += 1
        incarnation = node.incarnation if node is not None else 0
        heappush(self._queue, (self.now_ms + delay_ms, self.events, node, incarnation, happens, arguments))

    def run(self, until_ms: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            self.now_ms, _, node, incarnation, happens, arguments = heappop(queue)
            if node is None:
                happens(*arguments)
            elif node.is_up and node.incarnation == incarnation:
                if node.is_paused:
                    node.backlog.append((happens, arguments))
                else:
                    happens(*arguments)
        self.now_ms = until_ms

    def tell(self, text: str) -> None:
        """A line of the trace; callers look at `trace` first, so that nobody makes texts in vain."""
        if self.trace is not None:
            self.trace.append(f"{self.now_ms:9.1f}  {text}")
