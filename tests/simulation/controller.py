"""What the controller does for the others: it buries those whose lease is over, and brings leadership home."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.cluster.metadata_draft import MetadataDraft

from .tree import Commit, Kind, View

if TYPE_CHECKING:
    from .broker import Broker

PREFERS = 0.05
"""How often it looks at preferred leaders, of the times that nothing else is to be done."""


def look_after(broker: Broker, view: View) -> bool:
    """True if a decision was sent to the tree."""
    image = view.image
    gone = [who for who, info in image.brokers.items() if info.is_alive and who not in view.leases]
    if gone:
        # One or all of them: a real one takes as many topics as fit into a commit.
        if broker.world.random.random() < 0.5:
            del gone[1:]
        draft = MetadataDraft(image)
        for dead in gone:
            draft.put_broker(replace(image.brokers[dead], is_alive=False))
        for dead in gone:
            broker.around.machines.bury(draft, dead, lambda topic: False)
        broker.commit(
            Commit(
                kind=Kind.BURY,
                base=image.version,
                image=draft.finish(),
                controller_epoch=view.controller_epoch,
                dead=tuple(gone),
            )
        )
        return True
    if broker.world.random.random() >= PREFERS:
        return False
    draft = MetadataDraft(image)
    for topic in image.topics.values():
        partitions = tuple(broker.around.machines.prefer(partition, draft.alive) for partition in topic.partitions)
        if partitions != topic.partitions:
            draft.put_topic(replace(topic, partitions=partitions))
    if not draft.touched_topics:
        return False
    broker.commit(
        Commit(kind=Kind.PREFER, base=image.version, image=draft.finish(), controller_epoch=view.controller_epoch)
    )
    return True
