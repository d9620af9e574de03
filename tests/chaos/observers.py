"""Clients that only look while a cluster is hurt: where logs end, and what followers serve."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.protocol import apis
from penstock.protocol.messages.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from support.cluster import Cluster
from support.steady_reader import SteadyReader
from support.wire import Wire

_LIST_OFFSETS_VERSION = 7
_PAUSE_S = 0.05
_ANSWER_S = 60.0
"""Longer than any broker is stopped: an answer that comes late counts too."""
ISOLATION = {0: "end", 1: "last stable offset"}

End = tuple[str, int, int]
"""Topic, partition and isolation level."""


class Floors:
    """The lowest end that an answer may tell: what was acknowledged, or told to anybody, before it was asked for."""

    def __init__(self) -> None:
        self._floors: dict[End, int] = {}
        self._turn = threading.Lock()
        self.violations: list[str] = []
        self.answers = 0

    def now(self) -> dict[End, int]:
        with self._turn:
            return dict(self._floors)

    def told(self, broker: int, asked_at: Mapping[End, int], end: End, offset: int) -> None:
        """An answer of a broker; `asked_at` are the floors of the moment in which it was asked for."""
        with self._turn:
            self.answers += 1
            floor = asked_at.get(end, 0)
            if offset < floor:
                topic, partition, isolation = end
                self.violations.append(
                    f"broker {broker} told {offset} as the {ISOLATION[isolation]} of {topic}-{partition};"
                    f" {floor} was acknowledged or told before it was asked"
                )
            self._floors[end] = max(offset, self._floors.get(end, 0))

    def acknowledged(self, topic: str, ends: Mapping[int, int]) -> None:
        """Of a topic without transactions: both ends are at least there."""
        with self._turn:
            for partition, offset in ends.items():
                for isolation in ISOLATION:
                    end = topic, partition, isolation
                    self._floors[end] = max(offset, self._floors.get(end, 0))


class EndObserver:
    """Asks every broker directly, all the time, where logs end. Who is not the leader must refuse, not guess.

    The answers of all brokers together must be those of one log that never shrinks: an answer may not lie below what
    was acknowledged to a producer, or told by any broker, before the question was sent.
    """

    def __init__(
        self, cluster: Cluster, topics: Mapping[str, int], acknowledged: Callable[[], Mapping[str, Mapping[int, int]]]
    ) -> None:
        """`topics` with their numbers of partitions; `acknowledged` gives ends by topic and partition."""
        self._cluster = cluster
        self._topics = topics
        self._acknowledged = acknowledged
        self._stop_asked = threading.Event()
        self._floors = Floors()
        self._threads = [
            threading.Thread(target=self._observe, args=(number,), name=f"ends of broker {number}", daemon=True)
            for number in cluster.numbers
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop_asked.set()
        for thread in self._threads:
            thread.join(_ANSWER_S)

    @property
    def violations(self) -> list[str]:
        return list(self._floors.violations)

    @property
    def answers(self) -> int:
        """How many ends were told."""
        return self._floors.answers

    def _observe(self, number: int) -> None:
        while not self._stop_asked.wait(_PAUSE_S):
            try:
                with self._cluster.wire(number, _ANSWER_S) as wire:
                    while not self._stop_asked.wait(_PAUSE_S):
                        for isolation in ISOLATION:
                            self._ask(number, wire, isolation)
            except (OSError, EOFError):
                continue  # it was killed, or is being started

    def _ask(self, number: int, wire: Wire, isolation: int) -> None:
        for topic, ends in self._acknowledged().items():
            self._floors.acknowledged(topic, ends)
        floors = self._floors.now()
        topics = tuple(
            ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    ListOffsetsPartition(partition_index=partition, timestamp=LATEST_TIMESTAMP)
                    for partition in range(partitions)
                ),
            )
            for topic, partitions in self._topics.items()
        )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
        for topic in wire.ask(apis.LIST_OFFSETS, _LIST_OFFSETS_VERSION, request)["topics"]:
            for found in topic["partitions"]:
                if found["error_code"] == 0:
                    end = topic["name"], found["partition_index"], isolation
                    self._floors.told(number, floors, end, found["offset"])


class RackReader(SteadyReader):
    """Reads from the replicas of one rack where there are any (KIP-392)."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rack: str) -> None:
        super().__init__(bootstrap, topic, partitions, f"the reader in rack {rack}", {"client.rack": rack})
        self.rack = rack
        self.from_followers = 0
        """How often a partition was seen to be read from a follower, looking once a second."""

    def look(self, partition: Mapping[str, Any]) -> None:
        self.from_followers += partition["broker"] not in (-1, partition["leader"])
