"""Named id types, so that a broker id is not passed where a partition is meant."""

from __future__ import annotations

import uuid
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TopicId = uuid.UUID

NO_TOPIC_ID = uuid.UUID(int=0)


class TopicPartition(NamedTuple):
    """The address of one log."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def new_topic_id() -> TopicId:
    """A random topic id that is never one of the two that Kafka reserves (0 and 1)."""
    return uuid.uuid4()
