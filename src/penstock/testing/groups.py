"""Consumer groups in memory: assignments and committed offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.brokerless.memory.topics import MemoryTopics
from penstock.ids import TopicPartition


class StubMember(Protocol):
    """A member of a group."""

    topics: Sequence[str]


@dataclass(slots=True)
class StubGroup:
    """One group; partitions go round its members in the order in which they joined."""

    members: list[StubMember] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)


class MemoryGroups:
    """All groups of a stub."""

    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics
        self._groups: dict[str, StubGroup] = {}

    def group(self, name: str) -> StubGroup:
        return self._groups.setdefault(name, StubGroup())

    def assigned_to(self, name: str, member: StubMember) -> set[TopicPartition]:
        """The partitions of this member."""
        members = self.group(name).members
        found = set()
        for topic in sorted({topic for each in members for topic in each.topics}):
            readers = [each for each in members if topic in each.topics]
            for partition in range(self._topics.partitions(topic)):
                if readers[partition % len(readers)] is member:
                    found.add(TopicPartition(topic, partition))
        return found
