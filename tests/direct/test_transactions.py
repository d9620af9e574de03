"""Business tables and messages in one transaction: the outbox, and handlers that work in the database."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy

import penstock
from penstock import direct
from penstock.brokerless.sql.store import SqlStore
from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
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
