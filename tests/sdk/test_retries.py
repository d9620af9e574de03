"""Failed messages against a real broker: they come again, and in the end they are dead letters; none is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from conftest import BrokerFactory
from penstock.sdk.topic_names import dead_topic, retry_topic
from support.broker_process import BrokerProcess
from support.foreign import seen_in
from support.programs import required_program, run
from support.receiving import SOON, Heard, committed, create, ends, running, wait_until_committed
from support.subscribers import SETTINGS, Subscribers
from support.waiting import until


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    return create(admin, topic, 3)


def test_a_failed_message_comes_again_with_growing_delays_and_then_is_a_dead_letter(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        raise ValueError(f"no {message.attempt}")

    receipt = client.send(
        created, b"value", key=b"key", headers=[("own", b"1"), ("own", b"2"), ("none", None)], biz_id="42", tags=["a"]
    )
    with running(client):
        seen = heard.wait(3)
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
    assert [message.attempt for message in seen] == [1, 2, 3]
    assert [message.error for message in seen] == [None, "ValueError: no 1", "ValueError: no 2"]
    for message in seen:
        assert (message.key, message.value) == (b"key", b"value")
        assert (message.topic, message.partition, message.offset) == (created, receipt.partition, 0)
        assert message.timestamp_ms == seen[0].timestamp_ms
        assert (message.biz_id, message.tags) == ("42", ("a",))
        assert message.headers[:3] == (("own", b"1"), ("own", b"2"), ("none", None))
    assert (dead.key, dead.value) == (b"key", b"value")
    assert dead.headers == [
        ("own", b"1"),
        ("own", b"2"),
        ("none", None),
        ("penstock-tags", b"a"),
        ("penstock-biz-id", b"42"),
        ("penstock-attempt", b"3"),
        ("penstock-origin", f"{created}/{receipt.partition}/0/{seen[0].timestamp_ms}".encode()),
        ("penstock-error", b"ValueError: no 3"),
        ("penstock-retry-topic", retry_topic(created, created).encode()),
    ]


def test_kcat_reads_retries_and_dead_letters_with_their_headers(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    kcat = required_program("kcat")

    @client.subscribe(created, group=created, retries=penstock.Retries(first="50ms", attempts=2), from_beginning=True)
    def handle(message: penstock.Message) -> None:
        raise KeyError("colour")

    client.send(created, b"green", key=b"k", partition=1)
    with running(client):
        seen_in(broker.kafka, f"{created}.dead", 1)
    said = {}
    for topic in (retry_topic(created, created), f"{created}.dead"):
        done = run([kcat, "-b", broker.kafka, "-C", "-t", topic, "-e", "-q", "-J"])
        (line,) = done.stdout.splitlines()
        said[topic] = json.loads(line)
        names = said[topic]["headers"][::2]
        headers = dict(zip(names, said[topic]["headers"][1::2], strict=True))
        assert (said[topic]["key"], said[topic]["payload"]) == ("k", "green")
        assert headers["penstock-origin"].startswith(f"{created}/1/0/")
        assert headers["penstock-error"] == "KeyError: 'colour'"
        assert headers["penstock-attempt"] == ("1" if topic.endswith(".retry") else "2")


def test_a_failed_message_does_not_hold_up_those_behind_it(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, retries=penstock.Retries(first="1h"), from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        if message.value == b"0":
            raise ValueError

    for number in range(20):
        client.send_soon(created, f"{number}", partition=0)
    client.flush()
    with running(client):
        heard.wait(20)
        wait_until_committed(broker.kafka, created, created)
    assert heard.values == [f"{number}".encode() for number in range(20)]


def test_retry_says_when_and_reject_says_never(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, retries=penstock.Retries(first="1h"), from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        if message.value == b"bad":
            message.reject("nobody wants it")
        elif message.attempt == 1:
            message.retry(after="50ms")

    client.send(created, b"bad")
    client.send(created, b"again")
    with running(client):
        heard.wait(3)
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
    assert heard.counts == {b"bad": 1, b"again": 2}
    assert dict(dead.headers)["penstock-error"] == b"nobody wants it"


def test_a_delayed_message_that_fails_comes_again_by_its_retries(client: penstock.Client, created: str) -> None:
    heard = Heard()

    @client.subscribe(created, group=created, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        heard(message)
        if message.attempt == 1:
            raise ValueError

    client.send(created, b"later", delay="100ms", timer_id="mine")
    with running(client):
        heard.wait(2)
    assert heard.values == [b"later", b"later"]


def test_an_endless_error_is_cut(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    @client.subscribe(created, group=created, retries=penstock.Retries(attempts=1), from_beginning=True)
    def handle(message: penstock.Message) -> None:
        raise ValueError("ä" * 100_000)

    client.send(created, b"x")
    with running(client):
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
    error = dict(dead.headers)["penstock-error"]
    assert error is not None
    assert len(error) <= 1024
    assert error.decode().startswith("ValueError: ää")


def test_each_retry_topic_is_as_large_as_its_topic_and_the_dead_letters_as_the_largest(
    admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    create(admin, topic, 2)
    create(admin, f"{topic}.wide", 5)
    heard, group = Heard(), f"{topic}/with ünusual name"
    client.subscribe([topic, f"{topic}.wide"], heard, group=group, from_beginning=True)
    client.send(topic, b"x")
    with running(client):
        heard.wait(1)
    topics = admin.list_topics().topics
    sizes = {retry_topic(group, topic): 2, retry_topic(group, f"{topic}.wide"): 5, dead_topic(group): 5}
    found = [name for name in topics if name.startswith(f"{topic}_with__nusual_name")]
    assert {name: len(topics[name].partitions) for name in found} == sizes


def test_a_process_killed_between_the_retry_and_the_commit_leaves_one_retry(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    common = {"bootstrap": broker.kafka, "topic": topic, "group": topic, "instance": "same", "first": "4s"}
    with penstock.Client(broker.kafka) as client, Subscribers(tmp_path, **common) as subscribers:
        client.send(topic, b"fails once")
        subscribers.start("one", die="retried")
        subscribers.wait_for_death("one")
        # The retry is durable and the message is not acknowledged.
        assert committed(broker.kafka, topic, topic).get(0, 0) == 0
        subscribers.start("one")
        wait_until_committed(broker.kafka, topic, topic)
        # It arrives later than any copy of the retry could.
        client.send(topic, b"works", delay="4s")
        until(lambda: "works" in subscribers.values("handled"), "everything is handled")
        subscribers.stop("one")
    assert subscribers.values("handled") == ["fails once", "works"]
    assert [event["attempt"] for event in subscribers.events("one", "handling")] == [1, 1, 2, 1]
    assert [seen.value for seen in seen_in(broker.kafka, retry_topic(topic, topic))] == [b"fails once"]


def test_kills_of_subscribers_and_of_the_broker_under_load_lose_nothing(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic, 4)
    common = {"bootstrap": broker.kafka, "topic": topic, "group": topic}
    sending = penstock.Sending(tries=20)
    with penstock.Client(broker.kafka, sending=sending) as client, Subscribers(tmp_path, **common) as subscribers:
        sent = subscribers.killed_under_load(broker, client, topic, 4, random.Random(7))
        until(lambda: set(sent) <= set(subscribers.values("handled")), "everything is handled", 90)
    lost = set(sent) - set(subscribers.values("handled"))
    assert not lost
    assert not seen_in(broker.kafka, f"{topic}.dead")
    assert sum(ends(broker.kafka, topic, 4).values()) >= len(sent)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_processes_of_one_group_that_subscribe_to_different_topics_get_their_own_retries(
    broker: BrokerProcess, admin: AdminClient, topic: str, delivery: Any
) -> None:
    names = [create(admin, f"{topic}-{which}", 2) for which in ("orders", "refunds")]
    heard = {name: Heard() for name in names}

    def subscribe(client: penstock.Client, name: str) -> None:
        @client.subscribe(name, group=topic, retries=SOON, delivery=delivery, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            heard[name](message)
            if message.attempt < 3:
                raise ValueError

    with penstock.Client(broker.kafka) as one, penstock.Client(broker.kafka) as two:
        for client, name in zip((one, two), names, strict=True):
            subscribe(client, name)
            for number in range(10):
                client.send_soon(name, f"{number}")
            assert client.flush()
        with running(one), running(two):
            for name in names:
                heard[name].wait(30)
    for name in names:
        assert {message.topic for message in heard[name].messages} == {name}
        assert len(heard[name].messages) == 30
