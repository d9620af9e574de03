"""Messages of one key, one after the other, against a real broker."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.foreign import seen_in
from support.receiving import SOON, Heard, create, running, wait_until_committed
from support.waiting import PATIENCE_S


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    return create(admin, topic, 2)


def by_key(heard: Heard) -> dict[bytes, list[int]]:
    found = defaultdict(list)
    for message in heard.messages:
        found[message.key or b""].append(int(message.value or b""))
    return found


def test_messages_of_a_key_are_handled_in_order_and_one_at_a_time(client: penstock.Client, created: str) -> None:
    heard, lock, busy, clashes = Heard(), threading.Lock(), set(), []

    @client.subscribe(created, group=created, concurrency=8, ordered=True, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        with lock:
            if message.key in busy:
                clashes.append(message)
            busy.add(message.key)
        try:
            if int(message.value or b"") % 7 == 3 and message.attempt == 1:
                raise ValueError("the first time")
            heard(message)
        finally:
            with lock:
                busy.discard(message.key)

    for number in range(20):
        for key in "abcdef":
            client.send_soon(created, f"{number}", key=key)
    assert client.flush()
    with running(client):
        heard.wait(120)
    assert not clashes
    assert by_key(heard) == {key.encode(): list(range(20)) for key in "abcdef"}


def test_a_key_that_fails_holds_up_itself_only(
    broker: BrokerProcess, admin: AdminClient, client: penstock.Client, topic: str
) -> None:
    create(admin, topic)
    heard, repaired = Heard(), threading.Event()
    patient = penstock.Retries(first="100ms", factor=1, attempts=1000)

    @client.subscribe(topic, group=topic, ordered=True, retries=patient, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        if message.key == b"broken" and not repaired.is_set():
            raise ConnectionError("not yet")
        heard(message)

    for number in range(5):
        client.send(topic, f"{number}", key=b"broken")
        client.send(topic, f"{number}", key=b"sound")
    with running(client):
        heard.wait(5)
        assert by_key(heard) == {b"sound": list(range(5))}
        repaired.set()
        heard.wait(10)
        wait_until_committed(broker.kafka, topic, topic)
    assert by_key(heard) == {b"sound": list(range(5)), b"broken": list(range(5))}
    # It was tried again here, not by way of the retry topic.
    assert seen_in(broker.kafka, retry_topic(topic, topic)) == []


def test_after_its_last_attempt_the_key_goes_on_with_the_next(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    heard, attempts = Heard(), []

    @client.subscribe(created, group=created, ordered=True, retries=SOON, from_beginning=True)
    def handle(message: penstock.Message) -> None:
        if message.value == b"0":
            attempts.append(message.attempt)
            raise ValueError("never")
        heard(message)

    for number in range(3):
        client.send(created, f"{number}", key=b"k")
    with running(client):
        heard.wait(2)
        (dead,) = seen_in(broker.kafka, f"{created}.dead", 1)
    assert attempts == [1, 2, 3]
    assert heard.values == [b"1", b"2"]
    assert (dead.key, dead.value) == (b"k", b"0")
    assert dict(dead.headers)["penstock-attempt"] == b"3"


def test_a_handler_that_is_late_is_waited_for_before_its_key_goes_on(broker: BrokerProcess, created: str) -> None:
    heard, go_on, late = Heard(), threading.Event(), threading.Event()

    class Watching(penstock.Hooks):
        def retried(self, message: penstock.Message, error: str, after_ms: int) -> None:
            late.set()

    with penstock.Client(broker.kafka, hooks=[Watching()]) as client:

        @client.subscribe(created, group=created, ordered=True, deadline="2s", concurrency=4, from_beginning=True)
        def handle(message: penstock.Message) -> None:
            if message.value == b"0" and message.attempt == 1:
                go_on.wait(PATIENCE_S)
                return
            heard(message)

        client.send(created, b"0", key=b"k")
        client.send(created, b"1", key=b"k")
        client.send(created, b"2", key=b"another")
        with running(client):
            heard.wait(1)
            assert late.wait(PATIENCE_S)
            assert heard.values == [b"2"]
            go_on.set()
            heard.wait(3)
    # The first has timed out, so it is tried again, before what is behind it.
    assert heard.values == [b"2", b"0", b"1"]
