"""Coordination trees for tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.cluster.coordination.contract import Change, Coordination
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.metadata import BrokerInfo
from penstock.cluster.metadata_changes import MetadataChanges
from penstock.cluster.metadata_draft import MetadataDraft
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


async def register(metadata: MetadataChanges, broker: BrokerInfo) -> None:
    """A broker that is there and the controller, for tests in which none starts."""

    def decide(draft: MetadataDraft) -> None:
        if draft.brokers.get(broker.id) != broker:
            draft.put_broker(broker)
            draft.put_controller(broker.id, 1)

    await metadata.change(decide)
