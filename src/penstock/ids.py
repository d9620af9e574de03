"""Named id types, so that a broker id is not passed where a partition is meant."""

from __future__ import annotations

import uuid
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TopicId = uuid.UUID

NO_TOPIC_ID = uuid.UUID(int=0)


_STAND_IN_SHIFT = 40
PRODUCER_IDS_END = 1 << _STAND_IN_SHIFT
"""Producer ids are given out below."""


_BESIDE = ":"
"""Ends the name under which a companion log is kept; no topic has a colon in its name."""


class TopicPartition(NamedTuple):
    """The address of one log."""

    topic: str
    partition: int

    def __str__(self) -> str:
        # As the name of a folder, that of a companion must not be longer than that of the log it belongs to.
        return f"{self.topic}{'' if self.topic.endswith(_BESIDE) else '-'}{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition:
        """The address that is written so; ValueError if none is."""
        topic, separator, number = text.rpartition(_BESIDE if _BESIDE in text else "-")
        return cls(topic + separator if separator == _BESIDE else topic, int(number))


def broker_client_id(broker: BrokerId) -> str:
    """The client id of a broker in the requests that it sends to other brokers."""
    return f"penstock-{broker}"


def companion_of(at: TopicPartition) -> TopicPartition:
    """The log beside a partition's own in which delayed records wait: `orders:0` beside `orders-0`."""
    return TopicPartition(at.topic + _BESIDE, at.partition)


def is_companion(at: TopicPartition) -> bool:
    """Whether this is the log beside a partition's own."""
    return at.topic.endswith(_BESIDE)


def main_of(companion: TopicPartition) -> TopicPartition:
    """The log that a companion is beside."""
    return TopicPartition(companion.topic.removesuffix(_BESIDE), companion.partition)


def stand_in_id(producer_id: int, partition: int) -> int:
    """The name under which a producer's batches for a retired partition are known in the log of its successor.

    A producer numbers its batches for each partition by itself: under one name the two rows would get mixed up.
    """
    assert 0 <= producer_id < PRODUCER_IDS_END
    return (partition + 1) << _STAND_IN_SHIFT | producer_id


def new_topic_id() -> TopicId:
    """A random topic id that is never one of the two that Kafka reserves (0 and 1)."""
    return uuid.uuid4()
