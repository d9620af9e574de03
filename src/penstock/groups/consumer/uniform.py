"""Balancing partitions among members that may read different topics.

Topics with the same readers are one cohort. A free partition goes to the reader with the fewest partitions; after that
partitions move one by one from a member to a reader of their topic that has at least two fewer. Each move brings the
loads closer together, so there is an end to it, and if all read the same topics it is the least number of moves.

Most members keep most of what they have: what stays is never looked at one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from penstock.groups.consumer.assignment import NOTHING, Assignment, TopicIdPartition, by_topic
from penstock.ids import TopicId


class _Cohort:
    """Readers of the same topics, the one with the least first; entries that are out of date are passed over."""

    def __init__(self, readers: Sequence[int], loads: Sequence[int]) -> None:
        self.size = len(readers)
        self._heap = [(loads[reader], reader) for reader in readers]
        heapq.heapify(self._heap)

    def push(self, load: int, reader: int) -> None:
        heapq.heappush(self._heap, (load, reader))

    def least(self, loads: Sequence[int]) -> int:
        while self._heap[0][0] != loads[self._heap[0][1]]:
            heapq.heappop(self._heap)
        return self._heap[0][1]


class Uniform:
    """A plan in the making; members are numbered by their place."""

    def __init__(self, members: int, readers: Mapping[TopicId, Sequence[int]]) -> None:
        self._readers = readers
        self._loads = [0] * members
        self._kept: list[Assignment] = [NOTHING] * members
        self._lost: list[set[TopicIdPartition]] = [set() for _ in range(members)]
        self._got: list[set[TopicIdPartition]] = [set() for _ in range(members)]
        self._to_give: list[dict[TopicId, list[int]] | None] = [None] * members
        """What a member has, in the order in which it gives; None before it gives for the first time."""
        self._cohort_of: dict[TopicId, _Cohort] = {}
        self._cohorts_of: list[list[_Cohort]] = [[] for _ in range(members)]

    def keep(self, member: int, partitions: Assignment) -> None:
        """The member has these already."""
        self._kept[member] = partitions
        self._loads[member] = len(partitions)

    def hand_out(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Assigns free partitions; those of topics with few readers first, because these have little choice."""
        cohorts: dict[tuple[int, ...], _Cohort] = {}
        for topic_id, found in self._readers.items():
            readers = tuple(found)
            if readers and readers not in cohorts:
                cohort = cohorts[readers] = _Cohort(readers, self._loads)
                for reader in readers:
                    self._cohorts_of[reader].append(cohort)
            if readers:
                self._cohort_of[topic_id] = cohorts[readers]
        waiting = by_topic(partitions)
        for topic_id in sorted(waiting, key=lambda found: self._cohort_of[found].size):
            cohort = self._cohort_of[topic_id]
            for index in waiting[topic_id]:
                self._give(cohort.least(self._loads), TopicIdPartition(topic_id, index))

    def balance(self) -> None:
        while max(self._loads, default=0) - min(self._loads, default=0) > 1 and self._balance_once():
            pass

    def _balance_once(self) -> bool:
        """The member with most gives first, one partition at a time, so that no other gives in its place."""
        richest = [(-load, member) for member, load in enumerate(self._loads)]
        heapq.heapify(richest)
        has_moved = False
        while richest:
            _, member = heapq.heappop(richest)
            if self._give_away_one(member):
                has_moved = True
                heapq.heappush(richest, (-self._loads[member], member))
        return has_moved

    def assignments(self) -> list[Assignment]:
        """Of each member, by its number."""
        return [
            (kept - lost) | got if lost or got else kept
            for kept, lost, got in zip(self._kept, self._lost, self._got, strict=True)
        ]

    def _give_away_one(self, member: int) -> bool:
        if not any(self._may_give(member, cohort) for cohort in self._cohorts_of[member]):
            return False
        for topic_id, indexes in self._held(member).items():
            cohort = self._cohort_of[topic_id]
            if indexes and self._may_give(member, cohort):
                partition = TopicIdPartition(topic_id, indexes.pop())
                self._lost[member].add(partition)
                self._got[member].discard(partition)
                self._change_load(member, -1)
                self._give(cohort.least(self._loads), partition)
                return True
        return False

    def _may_give(self, member: int, cohort: _Cohort) -> bool:
        return self._loads[member] - self._loads[cohort.least(self._loads)] > 1

    def _held(self, member: int) -> dict[TopicId, list[int]]:
        """Topic by topic, what was handed out last is given first."""
        held = self._to_give[member]
        if held is None:
            held = self._to_give[member] = {}
            for source in (self._kept[member], self._got[member]):
                for topic_id, indexes in by_topic(source).items():
                    held.setdefault(topic_id, []).extend(indexes)
        return held

    def _give(self, member: int, partition: TopicIdPartition) -> None:
        self._got[member].add(partition)
        held = self._to_give[member]
        if held is not None:
            held.setdefault(partition.topic_id, []).append(partition.partition)
        self._change_load(member, 1)

    def _change_load(self, member: int, step: int) -> None:
        self._loads[member] += step
        for cohort in self._cohorts_of[member]:
            cohort.push(self._loads[member], member)
