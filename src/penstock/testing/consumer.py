"""A group consumer that reads topics in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.brokerless.memory.topics import MemoryTopics
from penstock.ids import TopicPartition
from penstock.sdk.ports import RebalanceListener, Received
from penstock.testing.groups import MemoryGroups


class StubConsumer:
    """A member of a group. Never waits: it records the timeout of each poll for the code that moves the clock."""

    def __init__(self, group: str, topics: MemoryTopics, groups: MemoryGroups) -> None:
        self._group = group
        self._topics = topics
        self._groups = groups
        self._listener: RebalanceListener | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._committed: deque[Callable[[bool], None]] = deque()
        self.topics: Sequence[str] = ()
        self.polls = 0
        """How often it was polled."""
        self.given = 0
        """How many messages it has returned."""
        self.timeout_s = 0.0
        """How long the last poll would have waited."""

    def join(self, topics: Sequence[str], listener: RebalanceListener, *, from_end: Sequence[str] = ()) -> None:
        group = self._groups.group(self._group)
        for topic in topics:
            for partition in range(self._topics.partitions(topic)):
                end = self._topics.end_offset(topic, partition) if topic in from_end else 0
                group.committed.setdefault(TopicPartition(topic, partition), end)
        self.topics = tuple(topics)
        self._listener = listener
        group.members.append(self)

    def poll(self, max_count: int, timeout_s: float) -> Sequence[Received]:
        self.polls += 1
        self.timeout_s = timeout_s
        while self._committed:
            self._committed.popleft()(True)
        self._rebalance()
        found: list[Received] = []
        for tp in sorted(self._positions.keys() - self._paused):
            messages, self._positions[tp] = self._topics.read(
                tp.topic, tp.partition, self._positions[tp], max_count - len(found)
            )
            found.extend(messages)
        self.given += len(found)
        return found

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(topic_partitions)

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(topic_partitions)

    def position(self, tp: TopicPartition) -> int | None:
        return self._positions.get(tp)

    def store_offsets(self, positions: Mapping[TopicPartition, int]) -> None:
        self._groups.group(self._group).committed.update(positions)

    def commit(self, positions: Mapping[TopicPartition, int], done: Callable[[bool], None]) -> None:
        self.store_offsets(positions)
        self._committed.append(done)

    def seek_to_committed(self) -> bool:
        committed = self._groups.group(self._group).committed
        for tp in self._positions:
            self._positions[tp] = committed[tp]
        return True

    def group_metadata(self) -> object:
        return self._group

    def close(self) -> None:
        members = self._groups.group(self._group).members
        if self in members:
            if self._positions and self._listener is not None:
                self._listener.revoked(sorted(self._positions))
            members.remove(self)
            self._positions.clear()

    def _rebalance(self) -> None:
        ours = self._groups.assigned_to(self._group, self)
        gone, new = sorted(self._positions.keys() - ours), sorted(ours - self._positions.keys())
        assert self._listener is not None
        if gone:
            self._listener.revoked(gone)
            for tp in gone:
                del self._positions[tp]
        if new:
            committed = self._groups.group(self._group).committed
            self._positions.update((tp, committed.get(tp, 0)) for tp in new)
            self._paused.difference_update(new)
            self._listener.assigned(new)
