"""Messages between processes: late, lost, never out of order between the same two, and cut off one way or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .world import Node, World

SLOWEST_MS = 6.0
"""How long a message takes at most if nothing is wrong."""


class Network:
    """Who reaches whom, and when."""

    def __init__(self, world: World) -> None:
        self.loss = 0.0
        self.cut: dict[tuple[str, str], int] = {}
        """Directions that are cut off, and how many faults do that."""
        self.slow: dict[str, float] = {}
        """Processes whose messages take longer, in milliseconds."""
        self._world = world
        self._last: dict[tuple[str, str], float] = {}

    def send(self, source: Node, target: Node, happens: Callable[..., None], *arguments: Any) -> None:
        world = self._world
        way = (source.name, target.name)
        chance = world.random.random()
        if way in self.cut or (self.loss and world.random.random() < self.loss):
            world.counts["messages lost"] += 1
            return
        delay = 1.0 + chance * (SLOWEST_MS - 1.0)
        if self.slow:
            delay += max(self.slow.get(source.name, 0.0), self.slow.get(target.name, 0.0)) * chance
        arrives = max(world.now_ms + delay, self._last.get(way, 0.0))
        self._last[way] = arrives
        world.after(arrives - world.now_ms, target, happens, *arguments)

    def cut_off(self, source: str, target: str) -> None:
        self.cut[source, target] = self.cut.get((source, target), 0) + 1

    def join(self, source: str, target: str) -> None:
        left = self.cut.get((source, target), 0) - 1
        if left > 0:
            self.cut[source, target] = left
        else:
            self.cut.pop((source, target), None)
