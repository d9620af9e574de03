"""Coordination trees for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.cluster.coordination import Change, Coordination
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.errors import CoordinationError

Opener = Callable[[], Awaitable[Coordination]]
"""Opens another connection to a tree."""


class Tree(EmbeddedCoordination):
    """An embedded tree whose disk can be taken away."""

    is_broken = False

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        if self.is_broken:
            raise CoordinationError("the disk is full")
        return await super().commit(*changes, seen=seen)
