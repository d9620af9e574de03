"""Assignors of the broker: which member of a consumer group reads which partitions.

An assignment gives every partition to exactly one member that subscribes to its topic, and is the same for the same
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.groups.consumer.assignment import Assignment, TopicIdPartition, partitions_of
from penstock.groups.consumer.uniform import Uniform
from penstock.ids import TopicId


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[TopicId]
    """Those that exist."""
    held: Assignment
    """What the last plan gave it."""

    @property
    def order(self) -> tuple[bool, str, str]:
        """Static members come first, by their lasting names: they keep their ranges when they return."""
        return self.instance_id is None, self.instance_id or "", self.member_id


Plan = dict[str, Assignment]
Assignor = Callable[[Sequence[Subscriber], Mapping[TopicId, int]], Plan]
"""Members, and the number of partitions of each topic."""


def uniform(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Plan:
    """Balances the number of partitions per member, and moves as few as possible."""
    ordered = sorted(subscribers, key=lambda subscriber: subscriber.order)
    readers: dict[TopicId, list[int]] = {topic_id: [] for topic_id in partitions}
    for number, subscriber in enumerate(ordered):
        for topic_id in subscriber.topics:
            readers[topic_id].append(number)
    plan = Uniform(len(ordered), readers)
    left = set().union(*(partitions_of(topic_id, count) for topic_id, count in partitions.items() if readers[topic_id]))
    for number, subscriber in enumerate(ordered):
        kept = subscriber.held & left
        if len(subscriber.topics) < len(partitions):
            kept = frozenset(partition for partition in kept if partition.topic_id in subscriber.topics)
        left -= kept
        plan.keep(number, kept)
    plan.hand_out(left)
    plan.balance()
    return dict(zip((subscriber.member_id for subscriber in ordered), plan.assignments(), strict=True))


def range_(subscribers: Sequence[Subscriber], partitions: Mapping[TopicId, int]) -> Plan:
    """Gives each member of a topic a range of neighbouring partitions; members have the same order in all topics."""
    plan: dict[str, set[TopicIdPartition]] = {subscriber.member_id: set() for subscriber in subscribers}
    ordered = sorted(subscribers, key=lambda subscriber: subscriber.order)
    for topic_id, count in partitions.items():
        readers = [subscriber.member_id for subscriber in ordered if topic_id in subscriber.topics]
        begin = 0
        for place, member_id in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            plan[member_id].update(TopicIdPartition(topic_id, index) for index in range(begin, begin + size))
            begin += size
    return {member_id: frozenset(assigned) for member_id, assigned in plan.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}
