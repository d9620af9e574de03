"""Brokers that have nothing but a database."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from penstock.config.database_address import DatabaseAddress
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.sdk.kafka.list_offsets import list_offsets
from penstock.sql.database import Database
from support.broker_process import BrokerProcess
from support.delayed import Arrivals, delayed, send
from support.locked_rows import locked_rows
from support.programs import PENSTOCK, environment
from support.stores import SERVERS, MariaDbProcess, NewDatabase
from support.waiting import PATIENCE_S, until
from support.wire import PRODUCE, Wire, batch_of, produce_request

from .conftest import NewSqlBroker

TOPIC = "create_order"
LEASE_MS = 3_000
"""Of brokers one of which is killed; the others have the usual one."""


def create(broker: BrokerProcess, topic: str, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    # Kafka's scripts ask for three copies; those are the database's matter.
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(PATIENCE_S)


def produce(kafka: str, topic: str, partition: int, values: list[bytes], **settings: Any) -> list[Message]:
    told: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        told.append(message)

    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, **settings})
    for value in values:
        headers: list[tuple[str, str | bytes | None]] = [
            ("penstock-biz-id", b"order-" + value),
            ("penstock-tags", b"paid"),
            ("raw", b"\xff\x00"),
        ]
        producer.produce(topic, value, b"key-" + value, partition, headers=headers, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    return told


def read(kafka: str, topic: str, partitions: int, count: int, **settings: Any) -> list[Message]:
    """The first `count` messages of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": kafka, "group.id": "never joined", "enable.auto.commit": False, **settings}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message for message in consumer.consume(500, 0.2) if message.error() is None]
    consumer.close()
    return found


def by_partition(messages: list[Message]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for message in messages:
        found.setdefault(message.partition() or 0, []).append(message.value() or b"")
    return found


async def query(url: str, sql: str, *params: object) -> list[tuple[Any, ...]]:
    database = await Database.open(DatabaseAddress.parse(url))
    try:
        return await database.run(lambda connection: connection.execute(sql, *params), is_read_only=True)
    finally:
        await database.close()


async def test_all_that_was_acknowledged_outlives_the_broker_and_its_folder(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker, TOPIC)
    sent = {partition: [b"%d-%d" % (partition, number) for number in range(150)] for partition in range(3)}
    for partition, values in sent.items():
        produce(broker.kafka, TOPIC, partition, values)
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "search", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, 2, 100)], asynchronous=False)
    consumer.close()
    broker.kill()
    shutil.rmtree(broker.data)
    anew = sql_broker(url)
    found = read(anew.kafka, TOPIC, 3, 450)
    assert by_partition(found) == sent
    assert dict(found[0].headers() or [])["raw"] == b"\xff\x00"
    consumer = Consumer({"bootstrap.servers": anew.kafka, "group.id": "search", "enable.auto.commit": False})
    assert [each.offset for each in consumer.committed([TopicPartition(TOPIC, 2)], PATIENCE_S)] == [100]
    consumer.close()
    # What a consumer at the committed offset 100 reads next.
    rows = await query(url, "SELECT id, biz_id, tags, msg_key, body FROM create_order_2 WHERE id > 100 LIMIT 50")
    assert rows == [
        (number + 1, f"order-2-{number}", "paid", b"key-2-%d" % number, b"2-%d" % number) for number in range(100, 150)
    ]
    assert anew.stop() == 0


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_where_a_log_ends_is_asked_again_while_its_leader_is_still_making_it(
    url: str, sql_broker: NewSqlBroker
) -> None:
    teller = sql_broker(url, 1)
    # It knows no other broker, so this one tells it who leads.
    admin = AdminClient({"bootstrap.servers": teller.kafka})
    admin.describe_cluster(request_timeout=PATIENCE_S).result()
    leader = sql_broker(url, 2, **{"limits.topic_wait_ms": 1})
    database = await Database.open(DatabaseAddress.parse(url), connections=1)
    at = TopicPartition(TOPIC, 0)
    led = CreatableReplicaAssignment(partition_index=0, broker_ids=(2,))
    placed = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=(led,), configs=())
    deletion = DeleteTopicsRequest(topics=(DeleteTopicState(name=TOPIC),), timeout_ms=1)
    with Wire(teller.address) as wire, Wire(leader.address) as at_leader:
        wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=(placed,), timeout_ms=1))
        until(lambda: at_leader.produce(TOPIC, batch_of(b"before"))["error_code"] == 0, "the leader has made the log")
        # It cannot remove that one, and only then makes the next.
        async with locked_rows(database):
            wire.ask(apis.DELETE_TOPICS, 6, deletion)
            wire.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics=(placed,), timeout_ms=1))
            until(lambda: wire.metadata(TOPIC)["partitions"], "a broker tells of the next")
            coming = Code.LEADER_NOT_AVAILABLE
            until(lambda: at_leader.metadata(TOPIC)["error_code"] == coming, "its leader is making the log")
            spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            looking = asyncio.ensure_future(asyncio.to_thread(list_offsets, admin, {at: spec}, PATIENCE_S))
            lookups = partial(leader.metric, "penstock_requests_total", api="ListOffsets")
            await asyncio.to_thread(until, lambda: lookups() >= 1, "the leader was asked")
        found = await looking
    await database.close()
    assert found.all() == {at: 0}


@pytest.mark.parametrize("url", SERVERS, indirect=True)
async def test_a_consumer_that_waits_gets_what_is_stored_after_its_producer_went_away(
    url: str, sql_broker: NewSqlBroker
) -> None:
    broker = sql_broker(url)
    database = await Database.open(DatabaseAddress.parse(url), connections=2)
    with Wire(broker.address) as wire:
        wire.create_topic(TOPIC, 2)
        assert wire.produce(TOPIC, batch_of(b"before"), partition=1)["error_code"] == 0
        # It asks again only when the test has failed.
        patient = {"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000}
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "never joined", **patient})
        # It makes all its connections, and does so before a fetch waits on one of them.
        consumer.committed([TopicPartition(TOPIC, 1)], PATIENCE_S)
        consumer.assign([TopicPartition(TOPIC, 1, 0)])
        assert [message.value() for message in consumer.consume(1, PATIENCE_S)] == [b"before"]
        until(lambda: broker.metric("penstock_parked_fetches") == 1, "the consumer waits")
        connections = broker.metric("penstock_connections")
        async with locked_rows(database, f"{TOPIC}_1"):
            async with locked_rows(database, f"{TOPIC}_0"):
                for partition, value in enumerate((b"elsewhere", b"after")):
                    wire.send(apis.PRODUCE, PRODUCE, produce_request(TOPIC, batch_of(value), partition=partition))
                end_offset = partial(broker.metric, "penstock_log_end_offset", topic=TOPIC, partition="1")
                until(lambda: end_offset() == 2, "both are written")
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wire.socket.close()
            # The broker finds out when it answers the first.
            until(lambda: broker.metric("penstock_connections") == connections - 1, "the producer has gone")
            assert broker.metric("penstock_parked_fetches") == 1
    await database.close()
    assert [message.value() for message in consumer.consume(1, PATIENCE_S)] == [b"after"]
    consumer.close()


def test_transactions_are_kept_over_a_crash(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker, TOPIC, 1)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "orders"})
    producer.init_transactions(PATIENCE_S)
    for value, commits in ((b"aborted", False), (b"committed", True)):
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=0)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    broker.kill()
    anew = sql_broker(url)
    found = read(anew.kafka, TOPIC, 1, 1, **{"isolation.level": "read_committed"})
    assert [message.value() for message in found] == [b"committed"]
    successor = Producer({"bootstrap.servers": anew.kafka, "transactional.id": "orders"})
    successor.init_transactions(PATIENCE_S)
    successor.begin_transaction()
    successor.produce(TOPIC, b"later", partition=0)
    successor.commit_transaction(PATIENCE_S)
    found = read(anew.kafka, TOPIC, 1, 2, **{"isolation.level": "read_committed"})
    assert [message.value() for message in found] == [b"committed", b"later"]


def test_a_delayed_message_comes_after_a_crash(url: str, sql_broker: NewSqlBroker) -> None:
    broker = sql_broker(url)
    create(broker, TOPIC, 1)
    send(broker.kafka, TOPIC, [delayed(b"late", "3000"), delayed(b"later", "3500")])
    broker.kill()
    shutil.rmtree(broker.data)
    anew = sql_broker(url)
    with Arrivals(anew.kafka, TOPIC) as arrivals:
        arrivals.until(2)
        assert arrivals.values == [b"late", b"later"]


def test_the_second_broker_goes_on_when_the_first_is_killed(url: str, sql_broker: NewSqlBroker) -> None:
    one, two = (sql_broker(url, number, **{"cluster.lease_ms": LEASE_MS}) for number in (1, 2))
    create(two, TOPIC, 4)
    kafka = f"{one.kafka},{two.kafka}"
    acknowledged: list[bytes] = []
    stop = threading.Event()

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message.value() or b"")

    def load() -> None:
        producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not stop.wait(0.001):
            producer.produce(TOPIC, b"%d" % number, partition=number % 4, on_delivery=report)
            producer.poll(0)
            number += 1
        assert producer.flush(PATIENCE_S) == 0

    thread = threading.Thread(target=load)
    thread.start()
    until(lambda: len(acknowledged) > 300, "messages are acknowledged")
    one.kill()
    before = len(acknowledged)
    until(lambda: len(acknowledged) > before + 1_000, "messages are acknowledged again")
    stop.set()
    thread.join()
    found = read(two.kafka, TOPIC, 4, len(acknowledged))
    values = [int(message.value() or b"") for message in found]
    assert sorted(values) == sorted(map(int, acknowledged))
    for partition in range(4):
        own = [int(value) for value in by_partition(found)[partition]]
        assert own == sorted(own)


def test_the_password_is_shown_nowhere(new_database: NewDatabase, tmp_path: Path) -> None:
    """Given on the command line, where everybody could read it."""
    url = new_database("mariadb")
    address = DatabaseAddress.parse(url)
    broker = BrokerProcess(tmp_path, options=["--sql", url])
    broker.start()
    try:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes().decode()
        resource = ConfigResource(ResourceType.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        described = admin.describe_configs([resource])[resource].result(PATIENCE_S)["sql.url"]
        shown = subprocess.run(
            [PENSTOCK, "config"],
            env=environment({"PENSTOCK_SQL_URL": url, "COLUMNS": "400"}),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout
        assert described.is_sensitive and described.value is None
        assert str(address) in shown
        secret = f":{address.password}@"
        assert secret in url
        for said in (command, shown, broker.log, broker.output):
            assert secret not in said
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_a_database_that_is_away_at_the_start_is_named(mariadb: MariaDbProcess, tmp_path: Path) -> None:
    url = "mysql://penstock:s3cr3t@127.0.0.1:1/penstock"
    broker = BrokerProcess(tmp_path, env={"PENSTOCK_SQL_URL": url})
    with pytest.raises(AssertionError, match="did not start") as refused:
        broker.start()
    assert "mysql://penstock@127.0.0.1:1/penstock" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)
    assert "Traceback" not in str(refused.value)
