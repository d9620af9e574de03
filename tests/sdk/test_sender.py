"""Who has sent a message: written on it if the client has a name, and kept on whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

import penstock
import penstock.aio
from support.broker_process import BrokerProcess
from support.messages import headers_of
from support.receiving import SOON, Heard, running
from support.waiting import until

SENDER = "penstock-sender"


@pytest.fixture
def shop(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka, client_id="shop") as client:
        yield client


@pytest.fixture
def nobody(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


def senders(broker: BrokerProcess, topic: str, count: int) -> dict[bytes, list[bytes]]:
    """Of each message of partition 0 who has sent it, for a plain consumer: all headers of that name."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "never joined",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, list[bytes]] = {}

    def has_all() -> bool:
        for message in consumer.consume(count, 0.1):
            if message.error() is None:
                headers = headers_of(message)
                found[message.value() or b""] = [value or b"" for name, value in headers if name == SENDER]
        return len(found) >= count

    try:
        until(has_all, f"{count} messages in {topic}")
    finally:
        consumer.close()
    return found


def test_a_client_with_a_name_writes_it_on_everything_and_one_without_writes_none(
    broker: BrokerProcess, shop: penstock.Client, nobody: penstock.Client, topic: str
) -> None:
    shop.send(topic, "sent")
    shop.send_soon(topic, "sent soon").result()
    shop.send(topic, "delayed", delay="100ms")
    with shop.transaction() as transaction:
        transaction.send(topic, "in a transaction")
    nobody.send(topic, "of nobody")
    assert senders(broker, topic, 5) == {
        b"sent": [b"shop"],
        b"sent soon": [b"shop"],
        b"delayed": [b"shop"],
        b"in a transaction": [b"shop"],
        b"of nobody": [],
    }


async def test_a_client_on_an_event_loop_does_the_same(broker: BrokerProcess, topic: str) -> None:
    async with penstock.aio.Client(broker.kafka, client_id="shop") as shop, penstock.aio.Client(broker.kafka) as nobody:
        await shop.send(topic, "sent")
        await nobody.send(topic, "of nobody")
    assert senders(broker, topic, 2) == {b"sent": [b"shop"], b"of nobody": []}


def test_what_a_handler_sends_exactly_once_is_of_its_application_and_its_retries_are_of_the_first_sender(
    broker: BrokerProcess, shop: penstock.Client, topic: str
) -> None:
    seen: list[tuple[int, bytes | None]] = []
    shop.send(topic, "order")
    with penstock.Client(broker.kafka, client_id="billing") as billing:

        @billing.subscribe(topic, group=topic, retries=SOON, delivery="exactly-once", from_beginning=True)
        def bill(message: penstock.Message) -> None:
            seen.append((message.attempt, dict(message.headers).get(SENDER)))
            message.transaction.send(f"{topic}.bills", "bill")
            if message.attempt == 1:
                raise ValueError("not today")

        with running(billing):
            assert senders(broker, f"{topic}.bills", 1) == {b"bill": [b"billing"]}
        assert billing.counters.sent == 2
    assert seen == [(1, b"shop"), (2, b"shop")]


def test_who_sends_for_somebody_else_may_say_so(broker: BrokerProcess, shop: penstock.Client, topic: str) -> None:
    shop.send(topic, "handed on", headers={SENDER: "partner"})
    assert senders(broker, topic, 1) == {b"handed on": [b"partner"]}


def test_retries_and_dead_letters_keep_the_first_sender_and_do_not_get_one(
    broker: BrokerProcess, shop: penstock.Client, nobody: penstock.Client, topic: str
) -> None:
    heard = Heard()
    shop.send(topic, "of the shop")
    nobody.send(topic, "of nobody")
    with penstock.Client(broker.kafka, client_id="billing") as billing:

        @billing.subscribe(topic, group=topic, retries=SOON, from_beginning=True)
        def fail(message: penstock.Message) -> None:
            heard(message)
            raise ValueError("never")

        with running(billing):
            letters = senders(broker, f"{topic}.dead", 2)
    assert letters == {b"of the shop": [b"shop"], b"of nobody": []}
    retried = [message for message in heard.messages if message.attempt > 1]
    assert {(message.value, message.attempt) for message in retried} == {
        (value, attempt) for value in (b"of the shop", b"of nobody") for attempt in (2, 3)
    }
    for message in retried:
        wanted = [b"shop"] if message.value == b"of the shop" else []
        assert [value for name, value in message.headers if name == SENDER] == wanted
