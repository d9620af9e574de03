"""How soon a group notices that one of its workers was killed, and the group protocols that a subscription can use."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from conftest import BrokerFactory
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.receiving import SOON, Heard, create, running, wait_until_committed, wait_until_joined

NEW_PROTOCOL = {"group.protocol": "consumer"}


def test_a_subscription_asks_for_a_session_of_ten_seconds(new_broker: BrokerFactory, topic: str) -> None:
    """A broker that grants no longer ones lets it join; with librdkafka's own 45 seconds it could not."""
    broker = new_broker({"groups.max_session_timeout_ms": 10_000, "groups.min_session_timeout_ms": 10_000})
    heard = Heard()
    with penstock.Client(broker.kafka) as client:
        client.subscribe(topic, heard, group=topic, from_beginning=True)
        client.send(topic, b"x")
        with running(client):
            heard.wait(1)


def test_an_application_may_choose_another_session(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker({"groups.max_session_timeout_ms": 7_000, "groups.min_session_timeout_ms": 7_000})
    heard = Heard()
    with penstock.Client(broker.kafka, settings={"session.timeout.ms": 7_000}) as client:
        client.subscribe(topic, heard, group=topic, from_beginning=True)
        client.send(topic, b"x")
        with running(client):
            heard.wait(1)


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once", "exactly-once"])
def test_a_subscription_can_use_the_new_group_protocol(
    broker: BrokerProcess, admin: AdminClient, topic: str, delivery: Any
) -> None:
    create(admin, topic, 3)
    heard = Heard()
    with penstock.Client(broker.kafka, settings=NEW_PROTOCOL) as client:

        @client.subscribe(topic, group=topic, retries=SOON, delivery=delivery, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            heard(message)
            if message.attempt == 1:
                message.retry()

        for number in range(10):
            client.send_soon(topic, f"{number}")
        assert client.flush()
        with running(client):
            heard.wait(20)
            wait_until_committed(broker.kafka, topic, topic, 3)
    assert set(heard.counts.values()) == {2}


def test_members_share_each_topic_in_the_new_protocol(broker: BrokerProcess, admin: AdminClient, topic: str) -> None:
    """Not that one has the topic and the other one its retries."""
    create(admin, topic, 4)
    with (
        penstock.Client(broker.kafka, settings=NEW_PROTOCOL) as one,
        penstock.Client(broker.kafka, settings=NEW_PROTOCOL) as two,
    ):
        for client in (one, two):
            client.subscribe(topic, Heard(), group=topic)
        with running(one), running(two):
            wait_until_joined(broker.kafka, topic, 2)
            members = admin.describe_consumer_groups([topic])[topic].result().members
            shares = [Counter(tp.topic for tp in member.assignment.topic_partitions) for member in members]
    assert shares == [{topic: 2, retry_topic(topic, topic): 2}] * 2


def test_a_group_moves_to_the_new_protocol_member_by_member(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 4)
    old, new = Heard(), Heard()

    def send(client: penstock.Client, *values: str) -> None:
        for value in values:
            for partition in range(4):
                client.send(topic, value, partition=partition)

    with penstock.Client(broker.kafka) as first, penstock.Client(broker.kafka, settings=NEW_PROTOCOL) as second:
        first.subscribe(topic, old, group=topic, from_beginning=True)
        second.subscribe(topic, new, group=topic, from_beginning=True)
        with running(second):
            with running(first):
                wait_until_joined(broker.kafka, topic, 2)
                send(first, "both")
                wait_until_committed(broker.kafka, topic, topic, 4)
            wait_until_joined(broker.kafka, topic, 1)
            send(first, "new only")
            wait_until_committed(broker.kafka, topic, topic, 4)
    assert (old.counts + new.counts)[b"both"] == 4
    assert new.counts[b"new only"] == 4
