"""The plans that the broker makes, for whatever members and topics there are."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.consumer.assignment import NOTHING, Assignment, TopicIdPartition, by_topic
from penstock.groups.consumer.assignors import ASSIGNORS, Plan, Subscriber, range_, uniform
from penstock.ids import TopicId

TOPICS = [uuid.UUID(int=number + 1) for number in range(5)]

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12))
sizes = st.integers(1, 9)
reading = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=8)


def members(subscriptions: list[frozenset[TopicId]], held: Plan | None = None) -> list[Subscriber]:
    return [
        Subscriber(
            f"m{number}", f"i{number}" if number % 3 == 0 else None, topics, (held or {}).get(f"m{number}", NOTHING)
        )
        for number, topics in enumerate(subscriptions)
    ]


def equal(size: int, partitions: dict[TopicId, int], held: Plan | None = None) -> list[Subscriber]:
    return members([frozenset(partitions)] * size, held)


def loads(plan: Plan) -> list[int]:
    return [len(assigned) for assigned in plan.values()]


def moved(before: Plan, after: Plan) -> int:
    """Partitions that somebody had and somebody else has now."""
    owner = {partition: member_id for member_id, assigned in after.items() for partition in assigned}
    return sum(
        partition in owner and owner[partition] != member_id
        for member_id, assigned in before.items()
        for partition in assigned
    )


@pytest.mark.parametrize("name", ASSIGNORS)
@given(subscriptions=reading, partitions=counts)
def test_every_partition_with_a_reader_is_given_once_and_to_a_reader(
    name: str, subscriptions: list[frozenset[TopicId]], partitions: dict[TopicId, int]
) -> None:
    subscribers = [replace(found, topics=found.topics & partitions.keys()) for found in members(subscriptions)]
    plan = ASSIGNORS[name](subscribers, partitions)
    given_out = Counter(partition for assigned in plan.values() for partition in assigned)
    read = frozenset().union(*(found.topics for found in subscribers))
    wanted = {TopicIdPartition(topic, index) for topic in read for index in range(partitions[topic])}
    assert given_out == Counter(wanted)
    for found in subscribers:
        assert {partition.topic_id for partition in plan[found.member_id]} <= found.topics


@given(size=sizes, partitions=counts)
def test_uniform_is_balanced_within_one_if_all_read_the_same(size: int, partitions: dict[TopicId, int]) -> None:
    plan = uniform(equal(size, partitions), partitions)
    assert max(loads(plan)) - min(loads(plan)) <= 1


@given(subscriptions=reading, partitions=counts)
def test_uniform_leaves_nobody_with_two_more_than_another_reader_of_the_same_topic(
    subscriptions: list[frozenset[TopicId]], partitions: dict[TopicId, int]
) -> None:
    subscribers = [replace(found, topics=found.topics & partitions.keys()) for found in members(subscriptions)]
    plan = uniform(subscribers, partitions)
    for rich in subscribers:
        for topic in by_topic(plan[rich.member_id]):
            for poor in subscribers:
                if topic in poor.topics:
                    assert len(plan[rich.member_id]) - len(plan[poor.member_id]) <= 1


@given(before=sizes, after=sizes, partitions=counts)
def test_uniform_moves_no_more_than_it_must(before: int, after: int, partitions: dict[TopicId, int]) -> None:
    old = uniform(equal(before, partitions), partitions)
    new = uniform(equal(after, partitions, old), partitions)
    assert max(loads(new)) - min(loads(new)) <= 1
    stayed = {member_id: assigned for member_id, assigned in old.items() if member_id in new}
    low, extra = divmod(sum(partitions.values()), after)
    # Those who have most may keep one more, as many as there are ones to spare.
    shares = sorted((len(assigned) for assigned in stayed.values()), reverse=True)
    must = sum(max(0, share - low - (place < extra)) for place, share in enumerate(shares))
    assert moved(stayed, new) == must


@given(size=sizes, partitions=counts)
def test_uniform_changes_nothing_when_nothing_has_changed(size: int, partitions: dict[TopicId, int]) -> None:
    plan = uniform(equal(size, partitions), partitions)
    assert uniform(equal(size, partitions, plan), partitions) == plan


@given(size=sizes, partitions=counts, count=st.integers(13, 20))
def test_uniform_gives_out_new_partitions_without_moving_old_ones(
    size: int, partitions: dict[TopicId, int], count: int
) -> None:
    plan = uniform(equal(size, partitions), partitions)
    more = dict.fromkeys(partitions, count)
    assert moved(plan, uniform(equal(size, partitions, plan), more)) == 0


def test_uniform_takes_what_a_former_plan_gave_twice_from_all_but_one() -> None:
    topic = TOPICS[0]
    twice = frozenset({TopicIdPartition(topic, 0), TopicIdPartition(topic, 1)})
    plan = uniform(equal(2, {topic: 2}, {"m0": twice, "m1": twice}), {topic: 2})
    assert sorted(loads(plan)) == [1, 1]


@given(size=sizes, count=st.integers(1, 20), topics=st.integers(1, 5))
def test_range_gives_the_same_neighbours_of_topics_with_as_many_partitions(size: int, count: int, topics: int) -> None:
    partitions = dict.fromkeys(TOPICS[:topics], count)
    plan = range_(equal(size, partitions), partitions)
    for assigned in plan.values():
        of_topics = list(by_topic(assigned).values())
        assert len(set(of_topics)) <= 1
        for indexes in of_topics:
            assert indexes == tuple(range(indexes[0], indexes[0] + len(indexes)))


@given(partitions=counts, count=st.integers(1, 12))
def test_range_gives_a_static_member_what_it_had_whatever_it_is_called_now(
    partitions: dict[TopicId, int], count: int
) -> None:
    static = [Subscriber(f"m{number}", f"i{number}", frozenset(partitions), NOTHING) for number in range(count)]
    renamed = [replace(found, member_id=f"z{number}") for number, found in enumerate(static)]
    before, after = range_(static, partitions), range_(renamed, partitions)
    assert [before[f"m{number}"] for number in range(count)] == [after[f"z{number}"] for number in range(count)]


def test_a_group_without_topics_is_given_nothing() -> None:
    nothing: dict[str, Assignment] = {"m0": NOTHING, "m1": NOTHING}
    assert uniform(equal(2, {}), {}) == nothing
    assert range_(equal(2, {}), {}) == nothing
