"""Consumer groups in memory: who has which partition, and what each group has read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.testing.topics import MemoryTopics


class Member(Protocol):
    """Somebody who reads for a group."""

    topics: Sequence[str]


@dataclass(slots=True)
class Group:
    """One group; partitions go around its members in the order in which they have joined."""

    members: list[Member] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)


class MemoryGroups:
    """All groups of a stub."""

    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics
        self._groups: dict[str, Group] = {}

    def group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())

    def places_of(self, name: str, member: Member) -> set[TopicPartition]:
        """The partitions that this member has now."""
        members = self.group(name).members
        found = set()
        for topic in sorted({topic for each in members for topic in each.topics}):
            readers = [each for each in members if topic in each.topics]
            for partition in range(self._topics.partitions(topic)):
                if readers[partition % len(readers)] is member:
                    found.add(TopicPartition(topic, partition))
        return found
