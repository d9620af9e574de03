"""Business tables and messages in one transaction: the outbox, and handlers that work in the database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

import penstock
import penstock.direct.aio
from penstock import direct
from penstock.brokerless.sql.store import SqlStore
from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.headers import ERROR, text_of
from penstock.sdk.topic_names import dead_topic
from support.waiting import until

from .conftest import OpenClient

TOPIC = "orders"
ZERO = TopicPartition(TOPIC, 0)


def connected(url: str) -> Any:
    """As an application connects."""
    address = DatabaseAddress.parse(url)
    match address.dialect:
        case DialectName.SQLITE:
            return sqlite3.connect(address.database, timeout=30)
        case DialectName.MYSQL:
            return pymysql.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                database=address.database,
                cursorclass=pymysql.cursors.DictCursor,
            )
        case DialectName.POSTGRESQL:
            return psycopg.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=address.password,
                dbname=address.database,
                row_factory=psycopg.rows.dict_row,
            )


@contextmanager
def application(url: str) -> Iterator[Any]:
    connection = connected(url)
    try:
        yield connection
    finally:
        connection.close()


def mark(url: str) -> str:
    return "?" if url.startswith("sqlite") else "%s"


def make_table(url: str) -> None:
    with application(url) as connection:
        connection.cursor().execute("CREATE TABLE bills (order_id VARCHAR(50))")
        connection.commit()


def bills(url: str) -> list[str]:
    with application(url) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT order_id FROM bills ORDER BY order_id")
        return [row["order_id"] if isinstance(row, dict) else row[0] for row in cursor.fetchall()]


def stored(store: SqlStore, tp: TopicPartition = ZERO) -> list[bytes | None]:
    return [message.value for message in store.read(tp, 0, 1000).messages]


@pytest.fixture
def ready(url: str, store: SqlStore) -> SqlStore:
    """With a topic whose tables are there, and a table of the application."""
    store.topics.create(TOPIC, 1)
    store.prepare_topic(TOPIC)
    make_table(url)
    return store


def test_messages_of_an_outbox_are_there_if_the_application_commits(url: str, ready: SqlStore) -> None:
    with application(url) as connection:
        connection.cursor().execute("INSERT INTO bills (order_id) VALUES ('7')")
        receipt = direct.outbox(connection).send(TOPIC, b"order 7", key="ann", headers={"a": "b"})
        connection.commit()
        direct.outbox(connection).send(TOPIC, b"rolled back")
        connection.rollback()
    assert receipt is not None
    assert (receipt.partition, receipt.offset) == (0, 0)
    (message,) = ready.read(ZERO, 0, 10).messages
    assert (message.value, message.key, message.headers) == (b"order 7", b"ann", (("a", b"b"),))
    assert ready.bounds(ZERO) == (0, 1)


def test_an_outbox_takes_connections_of_sqlalchemy(url: str, ready: SqlStore) -> None:
    drivers = {"mysql:": "mysql+pymysql:", "postgresql:": "postgresql+psycopg:"}
    scheme = url[: url.index(":") + 1]
    engine = sqlalchemy.create_engine(url.replace(scheme, drivers.get(scheme, scheme), 1))
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("INSERT INTO bills (order_id) VALUES ('8')"))
            with direct.outbox(connection) as box:
                box.send(TOPIC, b"a")
                box.send(TOPIC, b"later", delay="300ms")
                box.send(TOPIC, b"b")
        assert stored(ready)[:2] == [b"a", b"b"]
        until(lambda: stored(ready) == [b"a", b"b", b"later"], "the delayed message is delivered")
        assert bills(url) == ["8"]
    finally:
        engine.dispose()


def test_an_outbox_refuses_what_it_cannot_do(url: str, ready: SqlStore) -> None:
    with pytest.raises(InvalidInputError, match="is no connection of"):
        direct.outbox(object())
    with application(url) as connection:
        with pytest.raises(TopicError, match="does not exist"):
            direct.outbox(connection).send("nothing", b"x")
        connection.rollback()
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
        elif isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        else:
            connection.autocommit(True)
        with pytest.raises(InvalidInputError, match="begin a transaction"):
            direct.outbox(connection)


def test_clients_and_outboxes_that_append_to_one_partition_lose_nothing(url: str, ready: SqlStore) -> None:
    def by_outbox() -> None:
        with application(url) as connection:
            for number in range(30):
                direct.outbox(connection).send(TOPIC, b"outbox %d" % number)
                connection.commit() if number % 3 else connection.rollback()

    def by_client() -> None:
        with direct.Client(url) as client:
            for number in range(30):
                client.send(TOPIC, b"client %d" % number)

    threads = [threading.Thread(target=work) for work in (by_outbox, by_client)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stored(ready)
    assert [value for value in found if value and value.startswith(b"client")] == [
        b"client %d" % number for number in range(30)
    ]
    assert [value for value in found if value and value.startswith(b"outbox")] == [
        b"outbox %d" % number for number in range(30) if number % 3
    ]


def test_a_handler_and_its_message_are_one_transaction(url: str, ready: SqlStore, open_client: OpenClient) -> None:
    client = open_client(url)
    failures = [b"2", b"5"]

    @client.subscribe_in_transaction(
        TOPIC, group="billing", from_beginning=True, retries=penstock.Retries(attempts=3, first="50ms")
    )
    def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
        assert message.value is not None
        sql = f"INSERT INTO bills (order_id) VALUES ({mark(url)})"
        transaction.cursor().execute(sql, (message.value.decode(),))
        transaction.send("billed", message.value)
        if message.value in failures:
            failures.remove(message.value)
            raise ValueError("fails once, after its work")

    client.start()
    for number in range(10):
        client.send(TOPIC, b"%d" % number)
    until(lambda: len(bills(url)) >= 10, "all are billed")
    client.stop()
    assert bills(url) == [str(number) for number in range(10)]
    assert sorted(value or b"" for value in stored(ready, TopicPartition("billed", 0))) == [
        b"%d" % number for number in range(10)
    ]


@dataclass(frozen=True)
class Order:
    """What applications send in these tests."""

    number: int
    customer: str


def test_a_handler_in_a_transaction_takes_and_sends_typed_payloads(
    url: str, ready: SqlStore, open_client: OpenClient
) -> None:
    client = open_client(url)
    billed: list[tuple[Order, str | None]] = []
    dead: list[penstock.Message] = []

    @client.subscribe_in_transaction(TOPIC, group="billing")
    def bill(order: Order, transaction: direct.HandlerTransaction, message: penstock.Message) -> None:
        transaction.cursor().execute(f"INSERT INTO bills (order_id) VALUES ({mark(url)})", (str(order.number),))
        transaction.send("billed", Order(order.number + 100, order.customer))
        assert order == message.decode(Order)

    @client.subscribe("billed", group="mail")
    def mail(order: Order, message: penstock.Message) -> None:
        billed.append((order, message.header("penstock-content-type")))

    client.subscribe(dead_topic("billing"), dead.append, group="dead-letters")
    client.send(TOPIC, Order(7, "ann"))
    client.send(TOPIC, b'{"number": "eight"}')
    client.start()
    until(lambda: billed and dead, "one is billed, and one is a dead letter")
    client.stop()
    assert billed == [(Order(107, "ann"), "json")]
    assert bills(url) == ["7"]
    assert "number" in (text_of(dead[0].headers, ERROR) or "")


def test_a_coroutine_and_its_message_are_one_transaction(url: str, ready: SqlStore) -> None:
    failures = {2, 5}
    insert = f"INSERT INTO bills (order_id) VALUES ({mark(url)})"

    async def main() -> None:
        async with direct.aio.Client(url) as client:

            @client.subscribe_in_transaction(
                TOPIC, group="billing", concurrency=3, retries=penstock.Retries(attempts=3, first="50ms")
            )
            async def bill(order: Order, transaction: direct.aio.AsyncHandlerTransaction) -> None:
                await transaction.execute(insert, (str(order.number),))
                assert await transaction.execute(f"SELECT 1 FROM bills WHERE order_id = '{order.number}'")
                transaction.send("billed", order)
                if order.number in failures:
                    failures.remove(order.number)
                    raise ValueError("fails once, after its work")

            for number in range(10):
                await client.send(TOPIC, Order(number, "ann"))
            await client.start()
            await asyncio.to_thread(until, lambda: len(bills(url)) >= 10, "all are billed")
            await client.stop()

    asyncio.run(main())
    assert not failures
    assert bills(url) == [str(number) for number in range(10)]
    assert len(stored(ready, TopicPartition("billed", 0))) == 10


def test_a_coroutine_that_takes_too_long_commits_nothing(url: str, ready: SqlStore) -> None:
    ended: list[str] = []
    insert = f"INSERT INTO bills (order_id) VALUES ({mark(url)})"

    async def main() -> None:
        async with direct.aio.Client(url, timeout="1s") as client:

            @client.subscribe_in_transaction(TOPIC, group="billing", retries=penstock.Retries(attempts=2, first="1ms"))
            async def bill(message: penstock.Message, transaction: direct.aio.AsyncHandlerTransaction) -> None:
                await transaction.execute(insert, (f"attempt {message.attempt}",))
                if message.attempt > 1:
                    return
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    with pytest.raises(InvalidInputError, match="the transaction is over"):
                        await transaction.execute(insert, ("late",))
                    ended.append("cancelled")
                    raise

            await client.send(TOPIC, b"x")
            await client.start()
            await asyncio.to_thread(until, lambda: bills(url), "the second attempt succeeds")

    asyncio.run(main())
    assert (bills(url), ended) == (["attempt 2"], ["cancelled"])


def test_an_error_of_the_applications_tables_is_not_taken_for_a_message_that_was_handled(
    url: str, ready: SqlStore, open_client: OpenClient
) -> None:
    """A constraint that is checked at COMMIT only PostgreSQL has; the others refuse at once."""
    is_deferred = url.startswith("postgresql")
    with application(url) as connection:
        unique = "UNIQUE DEFERRABLE INITIALLY DEFERRED" if is_deferred else "UNIQUE"
        connection.cursor().execute(f"CREATE TABLE once (order_id VARCHAR(50) {unique})")
        connection.cursor().execute("INSERT INTO once (order_id) VALUES ('7')")
        connection.commit()
    client, dead = open_client(url), list[penstock.Message]()

    @client.subscribe_in_transaction(TOPIC, group="billing", retries=penstock.Retries(attempts=1))
    def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
        transaction.cursor().execute("INSERT INTO once (order_id) VALUES ('7')")

    client.subscribe(dead_topic("billing"), dead.append, group="dead-letters")
    client.send(TOPIC, b"7")
    client.start()
    until(lambda: dead, "the message is a dead letter")
    assert dead[0].value == b"7"


def test_a_handler_without_a_transaction_is_refused(url: str, open_client: OpenClient) -> None:
    client = open_client(url)

    def only_message(message: penstock.Message) -> None: ...

    async def coroutine(message: penstock.Message, transaction: direct.HandlerTransaction) -> None: ...

    for handler, said in ((only_message, "and a HandlerTransaction"), (coroutine, "is a coroutine function")):
        with pytest.raises(InvalidInputError, match=said):
            client.subscribe_in_transaction(TOPIC, handler, group="billing")


def test_a_message_that_comes_again_is_not_handled_again_unless_a_person_moves_the_group_back(
    url: str, ready: SqlStore, open_client: OpenClient
) -> None:
    direct_client = open_client(url)
    for number in range(5):
        direct_client.send(TOPIC, b"%d" % number)

    def run(until_true: Callable[[], bool]) -> None:
        with direct.Client(url) as client:

            @client.subscribe_in_transaction(TOPIC, group="billing", from_beginning=True)
            def bill(message: penstock.Message, transaction: direct.HandlerTransaction) -> None:
                assert message.value is not None
                sql = f"INSERT INTO bills (order_id) VALUES ({mark(url)})"
                transaction.cursor().execute(sql, (message.value.decode(),))

            client.start()
            until(until_true, "the messages are handled")

    run(lambda: len(bills(url)) >= 5)
    assert ready.committed("billing", [ZERO]) == {ZERO: 5}
    # As if the member had died before it committed.
    _set_offset(ready, 2, is_known=True)
    run(lambda: ready.committed("billing", [ZERO]) == {ZERO: 5})
    assert bills(url) == ["0", "1", "2", "3", "4"]
    _set_offset(ready, 3, is_known=False)
    run(lambda: len(bills(url)) >= 7)
    assert bills(url) == ["0", "1", "2", "3", "3", "4", "4"]


def _set_offset(store: SqlStore, offset: int, *, is_known: bool) -> None:
    def change(connection: Any) -> None:
        connection.change("UPDATE orders_consumers SET committed_offset = ?", offset)
        if is_known:
            connection.change("UPDATE direct_claim SET committed_offset = ?", offset)

    store.thread.change("default", change)
