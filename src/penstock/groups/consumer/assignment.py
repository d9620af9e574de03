"""Assignments of a consumer group: sets of partitions that can be compared and subtracted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from penstock.ids import TopicId


class TopicIdPartition(NamedTuple):
    """A partition of one topic id: a topic that was created later under the same name has another id."""

    topic_id: TopicId
    partition: int


Assignment = frozenset[TopicIdPartition]

NOTHING: Assignment = frozenset()

_TOPICS_KEPT = 256
_ASSIGNMENTS_KEPT = 256


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[TopicId, tuple[int, ...]]:
    """The partitions of each topic, in order."""
    # Sorted and grouped by number: every look at a UUID itself would be a call of Python code.
    found: dict[int, tuple[TopicId, list[int]]] = {}
    for topic_id, partition in partitions:
        group = found.get(topic_id.int)
        if group is None:
            group = found[topic_id.int] = (topic_id, [])
        group[1].append(partition)
    groups = [found[number] for number in sorted(found)]
    return {topic_id: tuple(sorted(indexes)) for topic_id, indexes in groups}


@lru_cache(_ASSIGNMENTS_KEPT)
def topics_of(assignment: Assignment) -> tuple[tuple[TopicId, tuple[int, ...]], ...]:
    """Topics with their partitions, in order: what records and answers list, the same for target, record and answer."""
    return tuple(by_topic(assignment).items())


@lru_cache(_TOPICS_KEPT)
def partitions_of(topic_id: TopicId, count: int) -> Assignment:
    """All partitions of a topic; created once and shared by all assignments."""
    return frozenset(TopicIdPartition(topic_id, index) for index in range(count))


def flat(topics: Iterable[tuple[TopicId, Iterable[int]]]) -> Assignment:
    return frozenset(TopicIdPartition(topic_id, index) for topic_id, indexes in topics for index in indexes)
