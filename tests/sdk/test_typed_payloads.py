"""Typed payloads through a real broker: objects in, objects out, and any Kafka client can read and write them."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pydantic
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import penstock
import penstock.aio
from support.broker_process import BrokerProcess
from support.foreign import seen_in
from support.receiving import SOON, create, running
from support.waiting import until

PICKLE = penstock.Codec("pickle", pickle.dumps, pickle.loads)


@dataclass(frozen=True)
class Order:
    id: UUID
    amount: Decimal
    at: datetime
    tags: list[str] = field(default_factory=list)


class Invoice(pydantic.BaseModel):
    order: UUID
    amount: Decimal


ORDER = Order(uuid4(), Decimal("12.50"), datetime(2026, 1, 1, tzinfo=UTC), ["new"])


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[penstock.Client]:
    with penstock.Client(broker.kafka) as client:
        yield client


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    return create(admin, topic)


def test_an_object_arrives_as_it_was_sent_also_after_a_retry(client: penstock.Client, created: str) -> None:
    seen: list[tuple[Order, int]] = []

    @client.subscribe(created, group=created, retries=SOON)
    def bill(order: Order, message: penstock.Message) -> None:
        seen.append((order, message.attempt))
        if message.attempt == 1:
            raise ValueError("not yet")

    client.send(created, ORDER)
    with running(client):
        until(lambda: len(seen) == 2, "the message is handled twice")
    assert seen == [(ORDER, 1), (ORDER, 2)]


def test_other_clients_read_and_write_it(broker: BrokerProcess, client: penstock.Client, created: str) -> None:
    client.send(created, ORDER)
    (sent,) = seen_in(broker.kafka, created, 1)
    assert json.loads(sent.value or b"") == {
        "id": str(ORDER.id),
        "amount": "12.50",
        "at": "2026-01-01T00:00:00+00:00",
        "tags": ["new"],
    }
    assert sent.headers == [("penstock-content-type", b"json")]
    foreign = Producer({"bootstrap.servers": broker.kafka})
    foreign.produce(created, json.dumps({"id": str(ORDER.id), "amount": 3, "at": "2026-01-01T00:00:00Z", "more": 1}))
    foreign.flush()
    seen: list[Order] = []

    @client.subscribe(created, group=created)
    def bill(order: Order) -> None:
        seen.append(order)

    with running(client):
        until(lambda: len(seen) == 2, "both are handled")
    assert seen == [ORDER, Order(ORDER.id, Decimal(3), ORDER.at)]


def test_what_cannot_be_decoded_is_a_dead_letter_and_holds_nothing_up(
    broker: BrokerProcess, client: penstock.Client, created: str
) -> None:
    seen: list[Order] = []

    @client.subscribe(created, group=created, batch=10)
    def bill(orders: list[Order]) -> None:
        seen.extend(orders)

    client.send(created, b'{"amount": "3"}', key="k")
    client.send(created, ORDER, key="k")
    with running(client):
        (letter,) = seen_in(broker.kafka, f"{created}.dead", 1)
        until(lambda: seen, "the other one is handled")
    headers = dict(letter.headers or [])
    assert (letter.key, letter.value) == (b"k", b'{"amount": "3"}')
    assert headers["penstock-error"] == b"DecodeError: not a valid Order: id is missing"
    assert headers["penstock-attempt"] == b"1"
    assert seen == [ORDER]


@pytest.mark.parametrize("delivery", ["at-most-once", "exactly-once"])
def test_every_guarantee_keeps_what_cannot_be_decoded(
    broker: BrokerProcess, client: penstock.Client, created: str, delivery: Any
) -> None:
    invoices = f"{created}-invoices"

    @client.subscribe(created, group=created, delivery=delivery)
    def bill(order: Order, message: penstock.Message) -> None:
        invoice = Invoice(order=order.id, amount=order.amount)
        if delivery == "exactly-once":
            message.transaction.send(invoices, invoice)
        else:
            client.send(invoices, invoice)

    client.send(created, b"x")
    client.send(created, ORDER)
    with running(client):
        (letter,) = seen_in(broker.kafka, f"{created}.dead", 1)
        (sent,) = seen_in(broker.kafka, invoices, 1)
    assert b"DecodeError: not valid json" in (dict(letter.headers or [])["penstock-error"] or b"")
    assert Invoice.model_validate_json(sent.value or b"").amount == ORDER.amount


def test_transactions_requests_and_replies_take_objects_and_other_codecs(broker: BrokerProcess, created: str) -> None:
    with penstock.Client(broker.kafka, codecs=[PICKLE]) as client:

        @client.subscribe(created, group=created)
        def bill(order: Order, message: penstock.Message) -> None:
            message.reply(Invoice(order=order.id, amount=order.amount))

        with running(client):
            answer = client.request(created, ORDER)
        assert answer.header("penstock-content-type") == "pickle"
        assert answer.decode(Invoice) == Invoice(order=ORDER.id, amount=ORDER.amount)
        with client.transaction() as transaction:
            transaction.send(f"{created}-done", ORDER, codec="json")
        (done,) = seen_in(broker.kafka, f"{created}-done", 1)
        assert done.headers == [("penstock-content-type", b"json")]


async def test_asyncio_clients_do_the_same(broker: BrokerProcess, created: str) -> None:
    seen: asyncio.Queue[Order] = asyncio.Queue()
    async with penstock.aio.Client(broker.kafka, codecs=[PICKLE]) as client:

        @client.subscribe(created, group=created)
        async def bill(order: Order, message: penstock.Message) -> None:
            await seen.put(order)
            if message.reply_token is not None:
                await message.reply(Invoice(order=order.id, amount=order.amount))

        await client.start()
        await client.send(created, ORDER)
        await client.send_soon(created, ORDER, codec="json")
        async with client.transaction() as transaction:
            transaction.send(created, ORDER)
        answer = await client.request(created, ORDER)
        assert [await seen.get() for _ in range(4)] == [ORDER] * 4
        assert answer.decode(Invoice).order == ORDER.id
