"""A person reads and moves groups with SQL, while brokers and consumers run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.sql.database import Connection, Database
from penstock.sql.errors import SchemaChanged
from support.broker_process import BrokerProcess
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

from . import conftest
from .conftest import NewSqlBroker, change, query

TOPIC = "create_order"
GROUP = "test"
LEASE_MS = 3_000
"""Of brokers one of which is killed."""
Row = tuple[Any, ...]

MOVE = "UPDATE create_order_consumers SET committed_offset=100 WHERE partition=2 AND consumer_group='test'"


def spelled(url: str, sql: str) -> str:
    """MySQL wants the name of this column quoted."""
    is_mysql = DatabaseAddress.parse(url).dialect is DialectName.MYSQL
    return sql.replace("partition", "`partition`") if is_mysql else sql


def by_hand(url: str, sql: str) -> None:
    conftest.by_hand(url, change(spelled(url, sql)))


@contextmanager
def held(url: str, sql: str) -> Iterator[None]:
    """Has a transaction open that has run a statement."""
    has_run, may_end = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        query(sql)(connection)
        has_run.set()
        may_end.wait()

    async def run() -> None:
        database = await Database.open(DatabaseAddress.parse(url), connections=1, timeout_ms=300_000)
        try:
            await database.run(work)
        finally:
            await database.close()

    person = threading.Thread(target=asyncio.run, args=[run()])
    person.start()
    try:
        assert has_run.wait(PATIENCE_S)
        yield
    finally:
        may_end.set()
        person.join()


def rows(url: str) -> list[Row] | None:
    """All rows but `known_offset`, of those in which it is the same; None if there is no table."""
    try:
        found = conftest.by_hand(url, query(f"SELECT * FROM {TOPIC}_consumers"))
    except SchemaChanged:
        return None
    return sorted(row[:3] for row in found if row[2] == row[3])


def until_rows(url: str, expected: list[Row] | None) -> None:
    until(lambda: rows(url) == expected, f"the table has {expected}")


def create(broker: BrokerProcess, partitions: int = 3, messages: int = 150) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for partition in range(partitions):
        for number in range(messages):
            producer.produce(TOPIC, b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def commit(broker: BrokerProcess, group: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    places = [TopicPartition(TOPIC, *each) for each in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker: BrokerProcess, group: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    (found,) = consumer.committed([TopicPartition(TOPIC, partition)], PATIENCE_S)
    consumer.close()
    return int(found.offset)


@contextmanager
def running(broker: BrokerProcess) -> Iterator[list[tuple[int, int]]]:
    """A consumer of the group that goes on until the end: the partitions and offsets that it has read so far."""
    seen: list[tuple[int, int]] = []
    stop = threading.Event()
    settings = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, "session.timeout.ms": 10_000}
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": GROUP, **settings})
    consumer.subscribe([TOPIC])

    def consume() -> None:
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.append((message.partition() or 0, message.offset() or 0))
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_offsets_are_rows_as_long_as_the_group_and_the_topic_are_there(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker)
    commit(broker, "one", {0: 10, 1: 20})
    commit(broker, "two", {0: 5})
    until_rows(url, [("one", 0, 10), ("one", 1, 20), ("two", 0, 5)])
    commit(broker, "one", {0: 11})
    until_rows(url, [("one", 0, 11), ("one", 1, 20), ("two", 0, 5)])
    by_hand(url, "DELETE FROM create_order_consumers")
    until_rows(url, [])
    commit(broker, "one", {0: 12, 1: 20})
    commit(broker, "two", {0: 6})
    until_rows(url, [("one", 0, 12), ("one", 1, 20), ("two", 0, 6)])
    by_hand(url, "DROP TABLE create_order_consumers")
    until_rows(url, [("one", 0, 12), ("one", 1, 20), ("two", 0, 6)])
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.delete_consumer_groups(["one"])["one"].result(PATIENCE_S)
    until_rows(url, [("two", 0, 6)])
    admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
    until_rows(url, None)


def test_a_statement_moves_a_group_that_runs(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker)
    with running(broker) as seen:
        until_rows(url, [(GROUP, 0, 150), (GROUP, 1, 150), (GROUP, 2, 150)])
        before = len(seen)
        by_hand(url, MOVE)
        until(lambda: len(seen) == before + 50, "the group reads 50 messages again")
        assert seen[before:] == [(2, offset) for offset in range(100, 150)]
        until_rows(url, [(GROUP, 0, 150), (GROUP, 1, 150), (GROUP, 2, 150)])
        # All partitions at once: the members are put out one time.
        by_hand(url, "UPDATE create_order_consumers SET committed_offset=148 WHERE consumer_group='test'")
        until(lambda: len(seen) == before + 56, "the group reads 6 messages again")
    assert sorted(seen[before + 50 :]) == [(partition, offset) for partition in range(3) for offset in (148, 149)]
    assert broker.metric("penstock_group_members_fenced_total") == 2


def test_a_group_is_moved_once_even_if_its_rows_are_held(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("postgresql")
    broker = sql_broker(url)
    create(broker)
    commit(broker, "other", {0: 10})
    everything = [("other", 0, 10), *((GROUP, partition, 150) for partition in range(3))]
    with running(broker) as seen:
        until_rows(url, everything)
        before = len(seen)
        with held(url, f"SELECT * FROM {TOPIC}_consumers WHERE partition=0 AND consumer_group='test' FOR UPDATE"):
            by_hand(url, MOVE)
            until(lambda: len(seen) == before + 50, "the group reads 50 messages again")
            for offset in (11, 12):
                # Each of them takes another look at the table.
                by_hand(
                    url, f"UPDATE create_order_consumers SET committed_offset={offset} WHERE consumer_group='other'"
                )
                until(lambda offset=offset: committed(broker, "other", 0) == offset, "the other group is moved")
        until_rows(url, [("other", 0, 12), *everything[1:]])
    assert len(seen) == before + 50
    assert broker.metric("penstock_group_members_fenced_total") == 1


def test_an_edit_that_makes_no_sense_is_set_back(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker)
    commit(broker, GROUP, {2: 30})
    until_rows(url, [(GROUP, 2, 30)])
    insert = "INSERT INTO create_order_consumers (consumer_group, partition, committed_offset) VALUES "
    for statement, reason in (
        (MOVE.replace("100", "151"), "offset 151 is outside of the log, which begins at 0 and ends at 150"),
        (MOVE.replace("100", "-5"), "offset -5 is outside of the log"),
        (f"{insert}('test', 7, 1)", "there is no partition 7"),
    ):
        by_hand(url, statement)
        until(lambda reason=reason: reason in broker.log, "the broker says why not")
        until_rows(url, [(GROUP, 2, 30)])
        assert committed(broker, GROUP, 2) == 30
    by_hand(url, f"{insert}('test', 1, 7)")
    until(lambda: committed(broker, GROUP, 1) == 7, "the group has the offset that was inserted")
    until_rows(url, [(GROUP, 1, 7), (GROUP, 2, 30)])


def test_what_happened_while_no_broker_ran_is_mended(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker)
    commit(broker, GROUP, {0: 10, 1: 20, 2: 30})
    until_rows(url, [(GROUP, 0, 10), (GROUP, 1, 20), (GROUP, 2, 30)])
    broker.kill()
    by_hand(url, "DELETE FROM create_order_consumers WHERE partition=0")
    by_hand(url, "UPDATE create_order_consumers SET committed_offset=19, known_offset=19 WHERE partition=1")
    columns = "(consumer_group, partition, committed_offset, known_offset)"
    by_hand(url, f"INSERT INTO create_order_consumers {columns} VALUES ('gone', 0, 5, 5)")
    by_hand(url, MOVE)
    anew = sql_broker(url)
    until_rows(url, [(GROUP, 0, 10), (GROUP, 1, 20), (GROUP, 2, 100)])
    assert committed(anew, GROUP, 2) == 100
    assert committed(anew, GROUP, 1) == 20
    assert anew.stop() == 0


def test_the_end_of_a_transaction_is_a_commit(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("sqlite")
    broker = sql_broker(url)
    create(broker)
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": GROUP})
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "orders"})
    producer.init_transactions(PATIENCE_S)
    for offset, commits in ((10, True), (20, False), (30, True)):
        producer.begin_transaction()
        places = [TopicPartition(TOPIC, 1, offset)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), PATIENCE_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
        if commits:
            until_rows(url, [(GROUP, 1, offset)])
    consumer.close()


def test_the_next_coordinator_performs_what_is_changed(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("postgresql")
    one, two = (sql_broker(url, number, **{"cluster.lease_ms": LEASE_MS}) for number in (1, 2))
    create(two)
    # Each broker coordinates some of them.
    groups = [f"group-{number}" for number in range(8)]
    for group in groups:
        commit(two, group, {2: 30})
    until_rows(url, [(group, 2, 30) for group in groups])
    one.kill()
    by_hand(url, "UPDATE create_order_consumers SET committed_offset=100 WHERE partition=2")
    until_rows(url, [(group, 2, 100) for group in groups])
    for group in groups:
        assert committed(two, group, 2) == 100
        commit(two, group, {2: 101})
    until_rows(url, [(group, 2, 101) for group in groups])
