"""Consumer groups: lag in pages, resets by plan, pauses, and partial failure."""

from __future__ import annotations

import pytest

from penstock.admin import (
    AdminError,
    AtOffset,
    Cluster,
    Earliest,
    GroupLag,
    GroupPause,
    Latest,
    NewTopic,
    ShiftBy,
    TopicPartition,
)
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.confluent import consumer_of, join_without_reading, send


@pytest.fixture
def orders(broker: BrokerProcess, cluster: Cluster, topic: str) -> str:
    """A topic of two partitions with five records in the first."""
    cluster.topics.create([NewTopic(name=topic, partitions=2)]).all()
    send(broker, topic, [b"1", b"2", b"3", b"4", b"5"])
    return topic


def test_lag_of_groups_comes_in_pages_by_name(cluster: Cluster, orders: str) -> None:
    at = TopicPartition(orders, 0)
    for number in range(5):
        cluster.groups.set_offsets(f"{orders}-{number}", {at: number}).all()
    found: list[GroupLag] = []
    after: str | None = f"{orders}-"
    pages = 0
    while after is not None and after.startswith(orders):
        page = cluster.groups.lags(limit=2, after=after)
        found += [group for group in page.items if group.name.startswith(orders)]
        after, pages = page.next, pages + 1
    assert [(group.name, group.lag) for group in found] == [(f"{orders}-{number}", 5 - number) for number in range(5)]
    assert pages >= 3
    assert [offset.committed for offset in found[3].offsets] == [3]


def test_a_group_that_does_not_exist_does_not_hide_one_that_does(cluster: Cluster, orders: str) -> None:
    cluster.groups.set_offsets(orders, {TopicPartition(orders, 0): 1}).all()
    found = cluster.groups.describe([orders, f"{orders}x"])
    assert found[orders].state == "EMPTY" and found[orders].members == ()
    error = found.errors[f"{orders}x"]
    assert error.code == "GROUP_ID_NOT_FOUND"
    assert error.message == f"there is no group {orders}x; did you mean {orders}?"
    assert orders in {group.name for group in cluster.groups.list().groups}
    done = cluster.groups.delete([orders, f"{orders}x"])
    assert set(done.values) == {orders} and done.errors[f"{orders}x"].code == "GROUP_ID_NOT_FOUND"


def test_members_are_described_and_keep_their_group_from_being_deleted(
    broker: BrokerProcess, cluster: Cluster, orders: str
) -> None:
    consumer = consumer_of(broker, **{"group.id": orders, "client.id": "reader", "group.instance.id": "till-3"})
    try:
        join_without_reading(consumer, orders)
        (member,) = cluster.groups.describe([orders])[orders].members
        assert (member.client_id, member.group_instance_id) == ("reader", "till-3")
        assert member.partitions == (TopicPartition(orders, 0), TopicPartition(orders, 1))
        error = cluster.groups.delete([orders]).errors[orders]
        assert (error.code, error.message) == ("NON_EMPTY_GROUP", "it has members; stop them first")
    finally:
        consumer.close()


def test_a_partition_that_does_not_exist_has_an_error_of_its_own(cluster: Cluster, orders: str) -> None:
    there, gone = TopicPartition(orders, 0), TopicPartition(f"{orders}-2", 0)
    ranges = cluster.offsets.ranges([there, gone])
    assert (ranges[there].start, ranges[there].end) == (0, 5)
    assert ranges.errors[gone].code == "UNKNOWN_TOPIC_OR_PARTITION"
    done = cluster.groups.set_offsets(orders, {there: 3, gone: 3})
    # Brokers fence the members of a group once, for all of its offsets or for none.
    assert done.values == {} and done.errors[gone].code == "UNKNOWN_TOPIC_OR_PARTITION"
    assert cluster.groups.committed([orders])[orders] == {}


def test_a_plan_says_what_a_reset_does_and_changes_nothing(cluster: Cluster, orders: str) -> None:
    one, other = TopicPartition(orders, 0), TopicPartition(orders, 1)
    cluster.groups.set_offsets(orders, {one: 3}).all()
    back = cluster.resets.plan(orders, Earliest())
    assert (back.before, back.after, back.member_count) == ({one: 3}, {one: 0}, 0)
    assert (back.effects[orders].repeated, back.effects[orders].skipped) == (3, 0)
    assert cluster.resets.plan(orders, Latest()).effects[orders].skipped == 2
    assert cluster.resets.plan(orders, ShiftBy(-100)).after == {one: 0}
    shifted = cluster.resets.plan(orders, ShiftBy(1), [one, other])
    assert shifted.after == {one: 4}
    assert shifted.errors[other].message == f"{orders}-1 has no committed offset to shift"
    too_far = cluster.resets.plan(orders, AtOffset(9))
    assert (too_far.after, too_far.errors[one].code) == ({}, "OFFSET_OUT_OF_RANGE")
    assert cluster.groups.committed([orders])[orders][one].offset == 3
    cluster.resets.apply(back).all()
    assert cluster.groups.committed([orders])[orders][one].offset == 0


def test_retry_topics_are_left_out_of_a_reset_unless_they_are_asked_for(cluster: Cluster, orders: str) -> None:
    retries = retry_topic(orders, orders)
    cluster.topics.create([NewTopic(name=retries, partitions=1)]).all()
    at, retry = TopicPartition(orders, 0), TopicPartition(retries, 0)
    cluster.groups.set_offsets(orders, {at: 3, retry: 0}).all()
    plan = cluster.resets.plan(orders, Earliest())
    assert set(plan.after) == {at} and plan.left_out == (retries,)
    plan = cluster.resets.plan(orders, Earliest(), include_retries=True)
    assert set(plan.after) == {at, retry} and plan.left_out == ()


def test_a_group_is_paused_topic_by_topic_and_resumed(cluster: Cluster, orders: str) -> None:
    assert not cluster.groups.pauses([orders])[orders]
    assert cluster.groups.pause(orders, ["a"]) == GroupPause(topics=("a",))
    assert set(cluster.groups.pause(orders, ["b"]).topics) == {"a", "b"}
    assert cluster.groups.resume(orders, ["a"]) == GroupPause(topics=("b",))
    assert cluster.groups.pause(orders).is_all
    assert not cluster.groups.resume(orders)


def test_an_empty_question_is_not_asked(cluster: Cluster) -> None:
    for results in (
        cluster.groups.describe([]),
        cluster.groups.delete([]),
        cluster.groups.committed([]),
        cluster.topics.create([]),
        cluster.topics.delete([]),
        cluster.topics.identify([]),
        cluster.configs.describe([]),
        cluster.offsets.latest([]),
        cluster.reassignments.move({}),
    ):
        assert (results.values, results.errors) == ({}, {})


def test_a_name_that_no_group_can_have_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(AdminError):
        cluster.groups.pause("")
