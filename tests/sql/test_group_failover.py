"""A topic over two databases, one of which has a replica, while its primary goes away, comes back, or is replaced.

Clients are real ones, and so are the servers and their replication.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.commands import said, told
from support.programs import PENSTOCK, run
from support.replicated import MariaDbPair
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

from .conftest import NewSqlBroker

TOPIC = "orders"
GROUP = "second"
ABOVE_ALL = 1 << 30


class Scene:
    """A broker whose default database is a file, and a second group of two servers. The topic has a partition in
    each. What consumers read comes from the databases: nothing is kept in memory.
    """

    def __init__(self, broker: BrokerProcess, default: str, servers: MariaDbPair, schema: str) -> None:
        self.broker = broker
        self._default = default.removeprefix("sqlite:///")
        self.servers = servers
        self.schema = schema
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
        ((found,),) = servers.primary.administer(f"select partition_index from {schema}.queue")
        self.there = int(found)
        """The partition in the second group."""
        self.here = 1 - self.there

    def produce(self, partition: int, *values: bytes) -> list[int]:
        """Gives the offsets."""
        offsets: list[int] = []

        def report(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            offsets.append(message.offset() or 0)

        producer = Producer({"bootstrap.servers": self.broker.kafka, "enable.idempotence": True})
        for value in values:
            producer.produce(TOPIC, value, partition=partition, on_delivery=report)
        assert producer.flush(PATIENCE_S) == 0
        return offsets

    def consumer(self, **settings: object) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.broker.kafka,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **settings,
            }
        )

    def reader(self, partition: int, offset: int = 0) -> Consumer:
        consumer = self.consumer()
        consumer.assign([TopicPartition(TOPIC, partition, offset)])
        return consumer

    def state(self, server: int) -> tuple[str, str]:
        """The role and the state of a server, as the broker tells it."""
        listed = told(run([PENSTOCK, "dbnode", "list", "--json", "-b", self.broker.kafka]))
        group = next(each for each in listed if each["group"] == GROUP)
        return group["servers"][server]["role"], group["servers"][server]["state"]

    def until_state(self, server: int, role: str, state: str) -> None:
        until(lambda: self.state(server) == (role, state), f"server {server} is a {role}, {state}")

    def answering(self) -> dict[str, str]:
        """Which servers answer, as the coordination tree says it: leased nodes."""
        with contextlib.closing(sqlite3.connect(self._default)) as connection:
            rows = connection.execute("SELECT path, value FROM penstock_node WHERE session IS NOT NULL").fetchall()
        found = {path: value for path, value in rows if path.startswith(f"/databases/{GROUP}/")}
        return {path.rpartition("/")[2]: json.loads(value)["server"] for path, value in found.items()}

    def next_id(self) -> int:
        """What the replica has."""
        return int(self.servers.replica.administer(f"select next_id from {self.schema}.queue")[0][0])


def taken(consumer: Consumer, count: int) -> list[tuple[int, bytes]]:
    """The next messages; fails if there are not so many. No error is allowed."""
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append((message.offset() or 0, message.value() or b""))
    return found


@pytest.fixture
def scene(
    sql_broker: NewSqlBroker, new_database: NewDatabase, replicated: MariaDbPair, tmp_path: Path
) -> Iterator[Scene]:
    key_file = tmp_path / "key"
    key_file.write_text(new_key())
    key_file.chmod(0o600)
    default = new_database("sqlite")
    broker = sql_broker(default, **{"sql.key_file": str(key_file), "sql.cache_bytes": 0})
    schema = f"test_{uuid.uuid4().hex[:12]}"
    primary, replica = replicated.create_database(schema)
    said(run([PENSTOCK, "dbnode", "add", GROUP, "--primary", primary, "--replica", replica, "-b", broker.kafka]))
    yield Scene(broker, default, replicated, schema)


def leader_of(client: Producer | Consumer, partition: int) -> int:
    found: int = client.list_topics(TOPIC, PATIENCE_S).topics[TOPIC].partitions[partition].leader
    return found


def numbered(first: int, count: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(first, first + count)]


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_consumers_go_on_and_producers_use_the_other_database_while_the_primary_is_gone(scene: Scene, how: str) -> None:
    servers = scene.servers
    scene.produce(scene.there, *(value for _, value in numbered(0, 50)))
    servers.until_equal()
    reader = scene.reader(scene.there)
    assert taken(reader, 10) == numbered(0, 10)
    outcomes: list[tuple[int, str | None]] = []

    def report(error: KafkaError | None, message: Message) -> None:
        outcomes.append((message.partition() or 0, None if error is None else error.name()))

    producer = Producer(
        {"bootstrap.servers": scene.broker.kafka, "message.timeout.ms": 8000, "sticky.partitioning.linger.ms": 0}
    )
    getattr(servers.primary, how)()
    try:
        assert taken(reader, 40) == numbered(10, 40)
        scene.until_state(0, "primary", "down")
        producer.produce(TOPIC, b"first", partition=scene.here)
        assert producer.flush(PATIENCE_S) == 0
        # A producer is told that the partition has no leader, and a consumer that it has one.
        until(lambda: leader_of(producer, scene.there) < 0, "the producer knows")
        assert leader_of(producer, scene.here) == leader_of(reader, scene.there) == 1
        # librdkafka draws a partition and, if that has no leader, once more: of a hundred records without a key it
        # gives about 25 to a partition without a leader, and 50 if it does not know.
        for _ in range(400):
            producer.produce(TOPIC, b"without a key", on_delivery=report)
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        delivered = [name for partition, name in outcomes if partition == scene.here]
        assert set(delivered) == {None} and len(delivered) > 250
        # The others wait, and fail when their time is over.
        assert {name for partition, name in outcomes if partition == scene.there} <= {"_MSG_TIMED_OUT"}
        # New readers begin while it is gone.
        late = scene.reader(scene.there)
        assert taken(late, 50) == numbered(0, 50)
        late.close()
        assert scene.reader(scene.there).get_watermark_offsets(TopicPartition(TOPIC, scene.there), PATIENCE_S) == (
            0,
            50,
        )
    finally:
        if how == "pause":
            servers.primary.resume()
        else:
            servers.primary.start()
    assert scene.produce(scene.there, *(value for _, value in numbered(50, 10))) == list(range(50, 60))
    assert taken(reader, 10) == numbered(50, 10)
    reader.close()


def test_a_reader_waits_for_what_the_replica_lacks_and_misses_nothing(scene: Scene) -> None:
    servers = scene.servers
    scene.produce(scene.there, *(value for _, value in numbered(0, 10)))
    servers.until_equal()
    servers.stop_applying()
    scene.produce(scene.there, *(value for _, value in numbered(10, 10)))
    servers.until_received()
    reader = scene.reader(scene.there)
    servers.primary.kill()
    assert taken(reader, 10) == numbered(0, 10)
    assert reader.consume(1, 1.0) == []
    servers.go_on_applying()
    assert taken(reader, 10) == numbered(10, 10)
    reader.close()


def test_a_broker_that_starts_while_the_primary_is_down_lets_readers_read_and_writers_wait(scene: Scene) -> None:
    servers, broker = scene.servers, scene.broker
    scene.produce(scene.there, *(value for _, value in numbered(0, 20)))
    scene.produce(scene.here, b"here")
    servers.until_equal()
    servers.stop_applying()
    scene.produce(scene.there, *(value for _, value in numbered(20, 5)))
    reader = scene.reader(scene.there)
    assert taken(reader, 25) == numbered(0, 25)
    broker.kill()
    servers.primary.kill()
    broker.start()
    late = scene.reader(scene.there)
    assert taken(late, 20) == numbered(0, 20)
    scene.produce(scene.here, b"here, too")
    # Nobody is told an end that is too low, and nobody is sent back to the start.
    with pytest.raises(KafkaException):
        late.get_watermark_offsets(TopicPartition(TOPIC, scene.there), 2)
    assert reader.consume(1, 1.0) == []
    servers.primary.start()
    assert scene.produce(scene.there, *(value for _, value in numbered(25, 5))) == list(range(25, 30))
    assert taken(late, 10) == numbered(20, 10)
    assert taken(reader, 5) == numbered(25, 5)
    late.close()
    reader.close()


def test_a_promoted_replica_is_the_primary_and_lost_records_are_a_gap(scene: Scene) -> None:
    servers, broker = scene.servers, scene.broker
    offsets: list[int] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset() or 0)

    producer = Producer({"bootstrap.servers": scene.broker.kafka, "enable.idempotence": True})
    for number, value in numbered(0, 20):
        if number == 10:
            servers.until_equal()
            servers.stop_receiving()
        producer.produce(TOPIC, value, partition=scene.there, on_delivery=report)
        assert producer.flush(PATIENCE_S) == 0
    reader = scene.reader(scene.there)
    assert taken(reader, 20) == numbered(0, 20)
    reader.commit(offsets=[TopicPartition(TOPIC, scene.there, 20)], asynchronous=False)
    first, second = (f"127.0.0.1:{server.port}" for server in (servers.primary, servers.replica))
    until(lambda: scene.answering() == {"primary": first, "replica-1": second}, "the tree says that both answer")
    servers.primary.kill()
    scene.until_state(0, "primary", "down")
    until(lambda: scene.answering() == {"replica-1": second}, "the tree says that the replica answers")
    servers.promote()
    scene.until_state(1, "primary", "up")
    until(lambda: scene.answering() == {"primary": second}, "the tree says that there is another primary")
    # The lost offsets are used for nothing else, and who has sent those records goes on.
    for _, value in numbered(20, 5):
        producer.produce(TOPIC, value, partition=scene.there, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    assert offsets == list(range(25))
    assert taken(reader, 5) == numbered(20, 5)
    reader.close()
    late = scene.reader(scene.there)
    assert taken(late, 15) == [*numbered(0, 10), *numbered(20, 5)]
    late.close()
    shown = broker.get("/metrics")
    assert "penstock_database_lost_records_total 10.0" in shown
    assert f'penstock_database_server_up{{group="second",role="primary",server="{second}"}} 1.0' in shown
    lost = [line for line in broker.log.splitlines() if "the database has lost records" in line]
    assert len(lost) == 1 and "first_offset=10" in lost[0] and "last_offset=19" in lost[0]
    assert broker.metric("penstock_database_lost_records_total") == 10
    # The former primary comes back as a server that takes writes: it is not asked for anything, and that is said.
    servers.primary.start()
    warning = "a server that is not the primary takes writes"
    until(lambda: warning in broker.log, "the broker warns of the former primary")
    assert scene.state(1)[0] == "primary"
    assert scene.next_id() == 26


def test_with_semi_synchronous_replication_nothing_acknowledged_is_lost(scene: Scene) -> None:
    servers = scene.servers
    servers.be_semi_synchronous(60_000)
    acknowledged: list[tuple[int, bytes]] = []
    failed: list[str] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append((message.offset() or 0, message.value() or b""))
        else:
            failed.append(error.name())

    producer = Producer(
        {"bootstrap.servers": scene.broker.kafka, "enable.idempotence": True, "linger.ms": 0, "retries": ABOVE_ALL}
    )
    number = 0
    while len(acknowledged) < 200:
        producer.produce(TOPIC, b"%d" % number, partition=scene.there, on_delivery=report)
        number += 1
        producer.poll(0.005)
    servers.primary.kill()
    for _ in range(20):
        producer.produce(TOPIC, b"%d" % number, partition=scene.there, on_delivery=report)
        number += 1
    servers.until_applied()
    servers.promote()
    assert producer.flush(2 * PATIENCE_S) == 0
    assert failed == [] and len(acknowledged) == number
    reader = scene.reader(scene.there)
    assert taken(reader, number) == sorted(acknowledged) == numbered(0, number)
    reader.close()
    assert scene.broker.metric("penstock_database_lost_records_total") == 0
