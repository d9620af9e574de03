"""How messages of one topic find their partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.brokerless.partitioner import partition_of_key
from penstock.ids import TopicPartition
from penstock.sdk.ports import Outgoing

_STICKY_MESSAGES = 1_000
"""How many messages without a key go to one partition before it is the turn of the next, if no batch ends earlier."""


@dataclass(slots=True)
class TopicRoutes:
    """Messages without a key go to one partition for a while, and then to the next."""

    topic: str
    partitions: int
    known_ms: float
    is_writable: Callable[[TopicPartition], bool]
    turn: int = 0
    given: int = 0

    @property
    def current(self) -> int:
        """The partition whose turn it is."""
        return self.turn % self.partitions

    def partition_of(self, outgoing: Outgoing) -> int:
        if outgoing.partition is not None:
            return outgoing.partition
        if outgoing.key is not None:
            return partition_of_key(outgoing.key, self.partitions)
        if self.given >= _STICKY_MESSAGES:
            self.next_turn()
        self.given += 1
        return self.turn % self.partitions

    def next_turn(self) -> None:
        """Messages without a key go on with the next partition that takes messages, or with the next one if none
        does.
        """
        self.given = 0
        for step in range(1, self.partitions + 1):
            turn = (self.turn + step) % self.partitions
            if self.is_writable(TopicPartition(self.topic, turn)):
                self.turn = turn
                return
        self.turn = (self.turn + 1) % self.partitions
