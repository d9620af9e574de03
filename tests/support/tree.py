"""A coordination tree for tests."""

from __future__ import annotations

from penstock.cluster.coordination import Change
from penstock.cluster.embedded import EmbeddedCoordination
from penstock.errors import CoordinationError


class Tree(EmbeddedCoordination):
    """An embedded tree whose disk can be taken away."""

    is_broken = False

    async def commit(self, *changes: Change) -> None:
        if self.is_broken:
            raise CoordinationError("the disk is full")
        await super().commit(*changes)
