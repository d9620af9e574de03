"""The stub for applications in direct mode: what a handler does in its transaction, and sends, happens or does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

import penstock
from penstock import direct
from penstock.direct import aio
from penstock.testing.direct import AsyncStubClient, StubClient

SOON = penstock.Retries(first="1s", factor=1, attempts=3, jitter=0)
INSERT = "INSERT INTO bills (number) VALUES (?)"


@dataclass(frozen=True)
class Order:
    number: int


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.execute("CREATE TABLE bills (number INTEGER)")
        opened.commit()
        yield opened


def bills(connection: sqlite3.Connection) -> list[int]:
    assert not connection.in_transaction
    return [number for (number,) in connection.execute("SELECT number FROM bills ORDER BY number")]


def test_a_handler_and_its_messages_are_one_transaction(connection: sqlite3.Connection) -> None:
    stub, failures = StubClient(connection), [2]

    @stub.subscribe_in_transaction("orders", group="billing", retries=SOON)
    def bill(order: Order, transaction: direct.HandlerTransaction) -> None:
        transaction.cursor().execute(INSERT, (order.number,))
        transaction.send("billed", order)
        if order.number in failures:
            failures.remove(order.number)
            raise ValueError("fails once, after its work")

    for number in (1, 2, 3):
        stub.send("orders", Order(number))
    stub.run()
    assert bills(connection) == [1, 3]
    assert [message.decode(Order).number for message in stub.messages("billed")] == [1, 3]
    stub.advance("2s")
    assert bills(connection) == [1, 2, 3]
    assert [message.decode(Order).number for message in stub.messages("billed")] == [1, 3, 2]
    assert [str(failure.error) for failure in stub.failures] == ["fails once, after its work"]


async def test_a_coroutine_and_its_messages_are_one_transaction(connection: sqlite3.Connection) -> None:
    stub, failures = AsyncStubClient(connection), [2]

    @stub.subscribe_in_transaction("orders", group="billing", retries=SOON, concurrency=3)
    async def bill(order: Order, transaction: aio.AsyncHandlerTransaction) -> None:
        await transaction.execute(INSERT, (order.number,))
        assert await transaction.execute("SELECT number FROM bills WHERE number = ?", (order.number,))
        transaction.send("billed", order)
        if order.number in failures:
            failures.remove(order.number)
            raise ValueError("fails once, after its work")

    for number in (1, 2, 3):
        await stub.send("orders", Order(number))
    await stub.run()
    assert bills(connection) == [1, 3]
    await stub.advance("2s")
    assert bills(connection) == [1, 2, 3]
    assert [message.decode(Order).number for message in stub.messages("billed")] == [1, 3, 2]


def test_an_assertion_of_a_handler_fails_the_test_and_rolls_back(connection: sqlite3.Connection) -> None:
    stub = StubClient(connection)

    @stub.subscribe_in_transaction("orders", group="billing")
    def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
        transaction.cursor().execute(INSERT, (1,))
        raise AssertionError("not so")

    stub.send("orders", b"x")
    with pytest.raises(AssertionError, match="not so"):
        stub.run()
    assert bills(connection) == []


def test_it_refuses_what_direct_mode_refuses(connection: sqlite3.Connection) -> None:
    stub = StubClient(connection)

    def only_message(message: penstock.Message) -> None: ...

    def good(message: penstock.Message, transaction: direct.HandlerTransaction) -> None: ...

    with pytest.raises(penstock.InvalidInputError, match="and a HandlerTransaction"):
        stub.subscribe_in_transaction("orders", only_message, group="billing")
    with pytest.raises(penstock.InvalidInputError, match="does not take batch"):
        stub.subscribe_in_transaction("orders", good, group="billing", batch=3)
    assert stub.create_topic("orders", 4, {"retention.ms": "1"})
    assert not stub.create_topic("orders")
