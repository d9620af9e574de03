"""Exactly once: what handlers send, retries, dead letters and offsets, in one transaction; judged by its output."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.foreign import seen_in, values_in
from support.receiving import SOON, Heard, create, running, wait_until_committed, wait_until_joined
from support.subscribers import SETTINGS, Subscribers
from support.waiting import PATIENCE_S, until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    create(admin, f"{topic}.out", 2)
    return create(admin, topic, 2)


def test_what_an_acknowledged_message_has_sent_is_seen_and_nothing_of_a_failed_one(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, delivery="exactly-once", concurrency=4, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        message.transaction.send(f"{created}.out", message.value, key=message.key, biz_id=f"{message.attempt}")
        if message.value == b"3" and message.attempt < 3:
            raise ValueError("what it has sent is forgotten")
        if message.value == b"4":
            message.reject("and so is this")

    for number in range(20):
        client.send_soon(created, f"{number}")
    assert client.flush()
    with running(client):
        out = seen_in(broker.kafka, f"{created}.out", 19)
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
        wait_until_committed(broker.kafka, created, created, 2)
    assert sorted(int(seen.value or b"") for seen in out) == [number for number in range(20) if number != 4]
    assert {dict(seen.headers)["penstock-biz-id"] for seen in out if seen.value == b"3"} == {b"3"}
    assert (dead.value, dict(dead.headers)["penstock-error"]) == (b"4", b"and so is this")
    # Not even to those who look at what is not committed: a failed handler's messages never leave the process.
    assert len(values_in(broker.kafka, f"{created}.out", committed=False)) == 19


def test_a_message_that_no_broker_takes_makes_a_dead_letter_of_the_one_that_sent_it(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    @client.subscribe(created, group=created, delivery="exactly-once", retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        size = 5_000_000 if message.value == b"1" else 5
        message.transaction.send(f"{created}.out", b"x" * size, key=message.value)

    for number in range(3):
        client.send(created, f"{number}", partition=0)
    with running(client):
        out = seen_in(broker.kafka, f"{created}.out", 2)
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
    assert {seen.key for seen in out} == {b"0", b"2"}
    assert dead.value == b"1"
    assert (dict(dead.headers)["penstock-error"] or b"").startswith(b"SendError")


def test_a_transaction_is_for_exactly_once_only(client: penstock.Client, created: str) -> None:
    heard, errors = Heard(), []

    @client.subscribe(created, group=created, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        try:
            message.transaction.send(f"{created}.out", b"x")
        except penstock.InvalidInputError as error:
            errors.append(str(error))
        heard(message)

    client.send(created, b"x")
    with running(client):
        heard.wait(1)
    assert errors == ['message.transaction requires delivery="exactly-once"']


def test_a_partition_that_the_library_begins_before_what_is_committed_goes_on_behind_that(
    broker: BrokerProcess, admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    create(admin, topic, 1)
    heard = Heard()
    client.subscribe(topic, heard, group=topic, delivery="exactly-once", from_beginning=True)
    with running(client):
        wait_until_joined(broker.kafka, topic)
        # The library has to have asked what is committed, and to wait at the beginning of the empty topic.
        time.sleep(1)
        _commit_from_outside(broker, topic, 3)
        with client.transaction() as transaction:
            for number in range(5):
                transaction.send(topic, f"{number}")
        heard.wait(2)
        client.send(topic, b"last")
        heard.wait(3)
    assert heard.values == [b"3", b"4", b"last"]


def _commit_from_outside(broker: BrokerProcess, topic: str, offset: int) -> None:
    """As a transaction of a member that is gone, which comes to its end late."""
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": f"late-{topic}"})
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    consumer.close()


def test_kills_of_subscribers_and_of_the_broker_under_load_lose_and_repeat_nothing(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic, 4)
    create(admin, f"{topic}.out", 2)
    common = {
        "bootstrap": broker.kafka,
        "topic": topic,
        "group": topic,
        "delivery": "exactly-once",
        "target": f"{topic}.out",
    }
    sending = penstock.Sending(tries=20)
    with penstock.Client(broker.kafka, sending=sending) as client, Subscribers(tmp_path, **common) as subscribers:
        sent = subscribers.killed_under_load(broker, client, topic, 5, random.Random(11))
        out: list[str] = []

        def is_there() -> bool:
            out[:] = [(value or b"").decode() for value in values_in(broker.kafka, f"{topic}.out")]
            return set(sent) <= set(out)

        until(is_there, "everything has come out", 120)
        subscribers.stop_all()
        is_there()
    lost, repeated = set(sent) - set(out), {value: count for value, count in Counter(out).items() if count > 1}
    assert (lost, repeated) == (set(), {})
    assert not seen_in(broker.kafka, f"{topic}.dead")
