"""A stub's side of a subscription: receiving from topics in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.ids import TopicPartition
from penstock.sdk.ports import Assignment, Received
from penstock.testing.groups import MemoryGroups
from penstock.testing.topics import MemoryTopics


class StubInbox:
    """A member of a group. Never waits: how long it was asked to is kept for whoever moves the clock."""

    def __init__(self, group: str, topics: MemoryTopics, groups: MemoryGroups) -> None:
        self._group = group
        self._topics = topics
        self._groups = groups
        self._assignment: Assignment | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._committed: deque[Callable[[bool], None]] = deque()
        self.topics: Sequence[str] = ()
        self.polls = 0
        """How often it was asked for messages."""
        self.given = 0
        """How many it has given out."""
        self.patience_s = 0.0
        """What the last poll would have waited."""

    def join(self, topics: Sequence[str], assignment: Assignment, *, from_end: Sequence[str] = ()) -> None:
        group = self._groups.group(self._group)
        for topic in topics:
            for partition in range(self._topics.partitions(topic)):
                end = self._topics.end_offset(topic, partition) if topic in from_end else 0
                group.committed.setdefault(TopicPartition(topic, partition), end)
        self.topics = tuple(topics)
        self._assignment = assignment
        group.members.append(self)

    def poll(self, most: int, timeout_s: float) -> Sequence[Received]:
        self.polls += 1
        self.patience_s = timeout_s
        while self._committed:
            self._committed.popleft()(True)
        self._rebalance()
        found: list[Received] = []
        for place in sorted(self._positions.keys() - self._paused):
            messages, self._positions[place] = self._topics.read(
                place.topic, place.partition, self._positions[place], most - len(found)
            )
            found.extend(messages)
        self.given += len(found)
        return found

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._paused.update(places)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(places)

    def position(self, place: TopicPartition) -> int | None:
        return self._positions.get(place)

    def settled(self, positions: Mapping[TopicPartition, int]) -> None:
        self._groups.group(self._group).committed.update(positions)

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        self.settled(positions)
        self._committed.append(done)

    def rewind(self) -> bool:
        committed = self._groups.group(self._group).committed
        for place in self._positions:
            self._positions[place] = committed[place]
        return True

    def group_metadata(self) -> object:
        return self._group

    def close(self) -> None:
        members = self._groups.group(self._group).members
        if self in members:
            if self._positions and self._assignment is not None:
                self._assignment.revoked(sorted(self._positions))
            members.remove(self)
            self._positions.clear()

    def _rebalance(self) -> None:
        ours = self._groups.places_of(self._group, self)
        gone, new = sorted(self._positions.keys() - ours), sorted(ours - self._positions.keys())
        assert self._assignment is not None
        if gone:
            self._assignment.revoked(gone)
            for place in gone:
                del self._positions[place]
        if new:
            committed = self._groups.group(self._group).committed
            self._positions.update((place, committed.get(place, 0)) for place in new)
            self._paused.difference_update(new)
            self._assignment.assigned(new)
