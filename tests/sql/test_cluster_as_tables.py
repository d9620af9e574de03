"""What people read with SQL about topics, databases and groups, while brokers and consumers run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from penstock.config.database_address import DatabaseAddress
from penstock.sql.errors import SchemaChanged
from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.programs import PENSTOCK, dying_with_us, environment, run
from support.stores import MariaDbProcess, NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker, by_hand, change, query

TOPIC = "create_order"
GROUP = "test"
LEASE_MS = 3_000
"""Of brokers one of which is killed."""
QUICK = {"groups.min_session_timeout_ms": 500}
Row = tuple[Any, ...]

_MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "client.id": "other",
                     "auto.offset.reset": "earliest", "session.timeout.ms": 2000, "heartbeat.interval.ms": 300})
consumer.subscribe([sys.argv[3]], on_assign=lambda consumer, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(0.1)
"""


def select(url: str, sql: str) -> list[Row]:
    return sorted(by_hand(url, query(sql)))


def until_rows(url: str, sql: str, expected: list[Row], patience_s: float = PATIENCE_S) -> None:
    found: list[Row] = []

    def is_so() -> bool:
        try:
            found[:] = select(url, sql)
        except SchemaChanged:
            return False  # a table is not there, or not yet
        return found == expected

    try:
        until(is_so, f"{sql} gives {expected}", patience_s)
    except AssertionError as error:
        raise AssertionError(f"{error}, but {found}") from error


def until_nothing_of(url: str, group: str) -> None:
    until_rows(url, f"SELECT name FROM consumer_group WHERE name = '{group}'", [])
    for table in ("consumer", "consumer_group_consumer", "consumer_group_topic", "queue_offset"):
        until_rows(url, f"SELECT consumer_group FROM {table} WHERE consumer_group = '{group}'", [])


def create(broker: BrokerProcess, topic: str = TOPIC, partitions: int = 4, messages: int = 20) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for partition in range(partitions):
        for number in range(messages):
            producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0
    return admin


@contextmanager
def member(kafka: str, client: str = "one", **more: Any) -> Iterator[Consumer]:
    """A consumer that polls until the end, commits all that it reads, and leaves."""
    settings = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 100, "client.id": client, **more}
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": GROUP, **settings})
    consumer.subscribe([TOPIC])
    stop = threading.Event()

    def consume() -> None:
        while not stop.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield consumer
    finally:
        stop.set()
        thread.join()
        consumer.close()


MEMBERS = "SELECT client_id, host, instance_id FROM consumer WHERE consumer_group = 'test'"
SHARES = (
    "SELECT one.client_id, two.partitions FROM consumer one JOIN consumer_group_consumer two"
    " ON one.consumer_group = two.consumer_group AND one.consumer_id = two.consumer_id"
)
STATE = "SELECT protocol, protocol_type, state, members, coordinator_id FROM consumer_group WHERE name = 'test'"
OFFSETS = (
    "SELECT topic, partition_index, committed_offset, client_id FROM queue_offset"
    " LEFT JOIN consumer ON consumer.consumer_group = queue_offset.consumer_group"
    " AND consumer.consumer_id = queue_offset.consumer_id"
)
TOPICS = "SELECT topic, is_subscribed FROM consumer_group_topic WHERE consumer_group = 'test'"


def test_topics_and_databases_are_rows(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    admin = create(broker)
    address = DatabaseAddress.parse(url)
    until_rows(url, "SELECT name, partitions, storage, is_internal FROM topic", [(TOPIC, 4, "sql", 0)])
    node = ("default", 0, "primary", address.dialect.value, address.host, address.port, address.database, address.user)
    until_rows(url, "SELECT * FROM db_node", [(*node, "up", 0)])
    ((topic_id, made_at),) = select(url, "SELECT topic_id, created_at FROM topic")
    # The same as the partitions say.
    assert {row[0] for row in select(url, f"SELECT topic_id FROM queue WHERE topic = '{TOPIC}'")} == {topic_id}
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    resource.add_incremental_config(ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    admin.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result(PATIENCE_S)
    settings = json.dumps({"penstock.storage": "sql", "retention.ms": "12345"})
    sql = "SELECT topic_id, partitions, settings, created_at FROM topic"
    until_rows(url, sql, [(topic_id, 6, settings, made_at)])
    create(broker, "other", 1, 0)
    admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
    until_rows(url, "SELECT name FROM topic", [("other",)])


def test_the_servers_of_a_database_group_are_rows(
    tmp_path: Path, new_database: NewDatabase, sql_broker: NewSqlBroker
) -> None:
    url = new_database("mariadb")
    key = tmp_path / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    broker = sql_broker(url, **{"sql.key_file": str(key)})
    server = MariaDbProcess(tmp_path / "mariadb").start()

    def dbnode(*arguments: str) -> None:
        ended = run([PENSTOCK, "dbnode", *arguments, "-b", broker.kafka])
        assert ended.returncode == 0, ended.stderr

    states = "SELECT role, database_name, user_name, state, is_draining FROM db_node WHERE group_name = 'orders'"
    try:
        dbnode("add", "orders", "--primary", server.create_database("orders"))
        until_rows(url, states, [("primary", "orders", "penstock", "up", 0)])
        server.kill()
        until_rows(url, states, [("primary", "orders", "penstock", "down", 0)])
        server.start()
        dbnode("drain", "orders")
        until_rows(url, states, [("primary", "orders", "penstock", "up", 1)])
        dbnode("remove", "orders")
        until_rows(url, "SELECT group_name FROM db_node", [("default",)])
    finally:
        server.kill()
    assert "penstock:penstock" not in broker.log


def test_what_members_do_is_rows(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url, **QUICK)
    admin = create(broker)
    everything = [(TOPIC, partition, 20) for partition in range(4)]
    with member(broker.kafka):
        until_rows(url, OFFSETS, [(*each, "one") for each in everything])
        until_rows(url, MEMBERS, [("one", "/127.0.0.1", None)])
        until_rows(url, STATE, [("classic", "consumer", "Stable", 1, 1)])
        until_rows(url, TOPICS, [(TOPIC, 1)])
        with member(broker.kafka, "two", **{"group.instance.id": "second"}):
            until_rows(url, SHARES, [("one", 2), ("two", 2)])
            until_rows(url, MEMBERS, [("one", "/127.0.0.1", None), ("two", "/127.0.0.1", "second")])
            owners = [row[3] for row in select(url, OFFSETS)]
            assert sorted(owners) == ["one", "one", "two", "two"]
            command = [sys.executable, "-c", _MEMBER, broker.kafka, GROUP, TOPIC]
            third = subprocess.Popen(dying_with_us(command), stdout=subprocess.PIPE, env=environment())
            try:
                until_rows(url, f"{SHARES} WHERE client_id = 'other'", [("other", 1)])
            finally:
                third.kill()
                third.communicate()
            until_rows(url, SHARES, [("one", 2), ("two", 2)])
        # A static member that closes keeps its place; an administrator takes it away.
        broker_sees = admin.describe_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
        assert len(broker_sees.members) == 2
    (generation,) = select(url, "SELECT generation FROM consumer_group WHERE name = 'test'")[0]
    assert generation > 2


def test_a_group_is_gone_when_it_is_deleted(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url, **QUICK)
    admin = create(broker)
    with member(broker.kafka):
        until_rows(url, OFFSETS, [(TOPIC, partition, 20, "one") for partition in range(4)])
    until_rows(url, STATE, [("classic", "consumer", "Empty", 0, 1)])
    until_rows(url, OFFSETS, [(TOPIC, partition, 20, None) for partition in range(4)])
    # Nobody subscribes to it any more.
    until_rows(url, TOPICS, [(TOPIC, 0)])
    resource = ConfigResource(ResourceType.GROUP, GROUP)
    resource.add_incremental_config(ConfigEntry("penstock.paused", "true", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    until_rows(url, "SELECT settings FROM consumer_group", [('{"penstock.paused": "true"}',)])
    admin.delete_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
    until_nothing_of(url, GROUP)


def test_offsets_go_with_their_topic(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("mariadb")
    broker = sql_broker(url, **QUICK)
    admin = create(broker)
    with member(broker.kafka):
        until_rows(url, OFFSETS, [(TOPIC, partition, 20, "one") for partition in range(4)])
    admin.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
    until_rows(url, "SELECT * FROM queue_offset", [])
    until_rows(url, TOPICS, [])


def test_members_of_the_new_protocol_are_rows(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("mariadb")
    broker = sql_broker(url, **QUICK)
    create(broker)
    new = {"group.protocol": "consumer"}
    with member(broker.kafka, **new):
        until_rows(url, STATE, [("consumer", "consumer", "Stable", 1, 1)])
        with member(broker.kafka, "two", **new):
            until_rows(url, SHARES, [("one", 2), ("two", 2)])
            until_rows(url, TOPICS, [(TOPIC, 1)])
        until_rows(url, OFFSETS, [(TOPIC, partition, 20, "one") for partition in range(4)])
    until_rows(url, MEMBERS, [])
    until_rows(url, OFFSETS, [(TOPIC, partition, 20, None) for partition in range(4)])


def test_the_next_broker_makes_the_rows_true(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("mariadb")
    one, two = (sql_broker(url, number, **{"cluster.lease_ms": LEASE_MS}, **QUICK) for number in (1, 2))
    create(two)
    with member(f"{one.kafka},{two.kafka}"):
        until_rows(url, OFFSETS, [(TOPIC, partition, 20, "one") for partition in range(4)])
        ((coordinator,),) = select(url, "SELECT coordinator_id FROM consumer_group WHERE name = 'test'")
        ((joined, member_id),) = select(url, "SELECT joined_at, consumer_id FROM consumer")
        killed, left = (one, two) if coordinator == 1 else (two, one)
        number = 3 - coordinator
        killed.kill()
        # As if the killed broker had written something and not lived to mend it.
        by_hand(url, change("INSERT INTO consumer VALUES ('gone', 'm', 'c', NULL, '/h', 0)"))
        by_hand(url, change("DELETE FROM consumer_group_topic"))
        by_hand(url, change("UPDATE topic SET partitions = 7"))
        until_rows(url, STATE, [("classic", "consumer", "Stable", 1, number)])
        until_rows(url, "SELECT consumer_group, client_id FROM consumer", [("test", "one")])
        until_rows(url, TOPICS, [(TOPIC, 1)])
        # The same member, unless it had to join again.
        ((joined_now, member_now),) = select(url, "SELECT joined_at, consumer_id FROM consumer")
        assert joined_now == joined or member_now != member_id
        # Whoever is the controller now.
        create(left, "other", 1, 0)
        shown = "SELECT name, partitions FROM topic WHERE is_internal = 0"
        until_rows(url, shown, [(TOPIC, 4), ("other", 1)], 90)


def test_the_rows_are_true_again_after_the_database_was_away(tmp_path: Path, sql_broker: NewSqlBroker) -> None:
    server = MariaDbProcess(tmp_path / "mariadb").start()
    try:
        url = server.create_database("queue")
        broker = sql_broker(url, **QUICK)
        admin = create(broker)
        with member(broker.kafka):
            until_rows(url, SHARES, [("one", 4)])
            server.kill()
            with member(broker.kafka, "two"):
                until(lambda: "metadata tables cannot be written" in broker.log, "the broker notices")
                server.start()
                until_rows(url, SHARES, [("one", 2), ("two", 2)])
                create(broker, "other", 1, 0)
                until_rows(url, "SELECT name FROM topic WHERE is_internal = 0", [(TOPIC,), ("other",)])
        until_rows(url, STATE, [("classic", "consumer", "Empty", 0, 1)])
        admin.delete_consumer_groups([GROUP])[GROUP].result(PATIENCE_S)
        until_nothing_of(url, GROUP)
        assert broker.stop() == 0
    finally:
        server.kill()


def test_a_table_that_was_dropped_is_made_again(new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database("postgresql")
    broker = sql_broker(url, **QUICK)
    create(broker)
    with member(broker.kafka):
        until_rows(url, OFFSETS, [(TOPIC, partition, 20, "one") for partition in range(4)])
        by_hand(url, change("DROP TABLE consumer, topic"), is_ddl=True)
        create(broker, "other", 1, 0)
        until(lambda: "metadata tables cannot be written" in broker.log, "the broker notices")
        with member(broker.kafka, "two"):
            until_rows(url, f"{SHARES} WHERE client_id = 'one'", [("one", 2)])
        until_rows(url, "SELECT name FROM topic WHERE is_internal = 0", [(TOPIC,), ("other",)])
    assert broker.stop() == 0


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_a_table_of_somebody_else_is_left_alone(kind: str, new_database: NewDatabase, sql_broker: NewSqlBroker) -> None:
    url = new_database(kind)
    by_hand(url, change("CREATE TABLE topic (name VARCHAR(20) PRIMARY KEY)"), is_ddl=True)
    by_hand(url, change("INSERT INTO topic VALUES ('mine')"))
    broker = sql_broker(url)
    create(broker)
    until(lambda: "is missing or was altered" in broker.log, "the broker says why not")
    with member(broker.kafka):
        until_rows(url, "SELECT partition_index FROM queue WHERE topic = 'create_order'", [(0,), (1,), (2,), (3,)])
    assert select(url, "SELECT * FROM topic") == [("mine",)]
    assert broker.stop() == 0
