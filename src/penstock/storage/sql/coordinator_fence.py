"""Fences writers of the copies of a coordinator's state: the table `queue_coordinator`.

A transaction that writes a copy locks the rows of what it writes for, and raises the epochs there to its own. A broker
with a lower epoch is no longer the coordinator, and writes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.ids import TopicId
from penstock.sql.database import Connection

CONTROLLER = uuid.UUID(int=0)
"""Stands for the controller where others have the id of an internal topic. Its only shard is 0."""

_TABLE = "queue_coordinator"
_COLUMNS = ("topic_id", "shard", "leader_epoch")


class Fence(NamedTuple):
    """In which epochs the caller leads shards of the internal topic."""

    topic_id: TopicId
    epochs: Mapping[int, int]


def fenced_shards(connection: Connection, fence: Fence) -> Collection[int]:
    """The shards that another broker leads by now; the others cannot become so until the transaction ends."""
    shards = sorted(fence.epochs)
    if not shards:
        return ()
    marks = ", ".join("?" * len(shards))
    topic_id = str(fence.topic_id)
    stored: dict[int, int] = dict(
        connection.execute(
            f"SELECT shard, leader_epoch FROM {_TABLE} WHERE topic_id = ? AND shard IN ({marks})"
            f" ORDER BY shard{connection.dialect.for_update}",
            topic_id,
            *shards,
        )
    )
    new = [(topic_id, shard, fence.epochs[shard]) for shard in shards if shard not in stored]
    raised = [(topic_id, shard, fence.epochs[shard]) for shard in stored if stored[shard] < fence.epochs[shard]]
    connection.insert(_TABLE, _COLUMNS, new)
    connection.upsert(_TABLE, _COLUMNS[:2], _COLUMNS, raised)
    return {shard for shard, epoch in stored.items() if epoch > fence.epochs[shard]}
