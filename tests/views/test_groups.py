"""Groups that read views: they share the base's partitions, commit the base's offsets, and have no lag at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from support.broker_process import BrokerProcess
from support.messages import place_of
from support.viewing import Order, Shown, create, expected, send
from support.waiting import PATIENCE_S, until

PROTOCOLS = ("classic", "consumer")


def member(broker: BrokerProcess, group: str, protocol: str, **more: Any) -> Consumer:
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 500,
    }
    return Consumer(settings | more)


def read_until(consumers: list[Consumer], is_done: Callable[[], bool], found: list[Shown]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_done():
        assert time.monotonic() < deadline, f"only {len(found)} records came"
        for consumer in consumers:
            for message in consumer.consume(500, timeout=0.05):
                assert message.error() is None, message.error()
                found.append(Shown(*place_of(message), message.value() or b""))


def committed(admin: AdminClient, group: str, topic: str, partitions: int) -> list[int]:
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, index) for index in range(partitions)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    return [each.offset for each in answer.result(PATIENCE_S).topic_partitions]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_a_view_and_commit_up_to_the_end_of_the_base(
    broker: BrokerProcess, admin: AdminClient, topic: str, protocol: str
) -> None:
    view = f"{topic}-view"
    create(admin, topic, view, "a", 4)
    orders = [Order(b"%d" % at, "a" if at < 200 and at % 5 == 0 else "b", at % 4) for at in range(400)]
    send(broker, topic, orders)
    wanted = expected(orders, lambda tags: "a" in tags)
    members = [member(broker, topic, protocol) for _ in range(2)]
    for each in members:
        each.subscribe([view])
    found: list[Shown] = []
    read_until(members, lambda: all(len(each.assignment()) == 2 for each in members) and len(found) >= 40, found)

    def is_all_committed() -> bool:
        for each in members:
            try:
                each.commit(asynchronous=False)
            except KafkaException as error:
                # One that has just been given its partitions has nothing to commit yet.
                assert error.args[0].code() == KafkaError._NO_OFFSET, error
        return committed(admin, topic, view, 4) == [100] * 4

    read_until(members, is_all_committed, found)
    for each in members:
        each.close()
    assert sorted(set(found)) == wanted
    lags = [broker.metric("penstock_group_lag", group=topic, topic=view, partition=str(index)) for index in range(4)]
    assert lags == [0.0] * 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_goes_on_where_it_was_and_sees_the_partitions_that_are_added(
    broker: BrokerProcess, admin: AdminClient, topic: str, protocol: str
) -> None:
    view = f"{topic}-view"
    create(admin, topic, view, "a", 1)
    send(broker, topic, [Order(b"before", "a"), Order(b"no", "b")])
    first = member(broker, topic, protocol)
    first.subscribe([view])
    found: list[Shown] = []
    read_until([first], lambda: bool(found), found)
    first.commit(asynchronous=False)
    first.close()
    send(broker, topic, [Order(b"after", "a"), Order(b"no", "b")])
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    second = member(broker, topic, protocol)
    second.subscribe([view])
    read_until([second], lambda: len(found) == 2 and len(second.assignment()) == 3, found)
    send(broker, topic, [Order(b"new", "b", 2), Order(b"new", "a", 2)])
    read_until([second], lambda: len(found) == 3, found)
    second.close()
    assert found == [Shown(0, 0, b"before"), Shown(0, 2, b"after"), Shown(2, 1, b"new")]


def test_a_deleted_view_takes_its_groups_offsets_with_it_and_leaves_its_base(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    view = f"{topic}-view"
    create(admin, topic, view, "a")
    send(broker, topic, [Order(b"1", "a")])
    consumer = member(broker, topic, "classic")
    consumer.commit(offsets=[TopicPartition(view, 0, 1), TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    admin.delete_topics([view])[view].result(PATIENCE_S)
    until(lambda: committed(admin, topic, view, 1) == [-1001], "the offsets of the view are gone")
    assert committed(admin, topic, topic, 1) == [1]
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics
