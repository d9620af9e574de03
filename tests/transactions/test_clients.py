"""Transactions of real clients: each writes, and all readers agree on what counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as PythonPartition
from kafka.errors import KafkaError as PythonError

from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.programs import required_program, run
from support.transactional import Place, committed_offset
from support.waiting import PATIENCE_S, until
from support.wire import Wire

PARTITIONS = 3
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Writes = list[tuple[bool, list[tuple[str, int, bytes]]]]
"""Transactions: whether each is committed, and its records by topic and partition."""


@pytest.fixture
def topics(wire: Wire, topic: str) -> list[str]:
    names = [topic, f"{topic}-other"]
    for name in names:
        wire.create_topic(name, partitions=PARTITIONS)
    return names


def confluent_writes(broker: BrokerProcess, name: str, writes: Writes, codec: str) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.kafka, "transactional.id": name, "compression.type": codec, "linger.ms": 1}
    )
    producer.init_transactions(PATIENCE_S)
    for commits, records in writes:
        producer.begin_transaction()
        for topic, partition, value in records:
            producer.produce(topic, value, partition=partition)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            assert producer.flush(PATIENCE_S) == 0
            producer.abort_transaction(PATIENCE_S)


def kafka_python_writes(broker: BrokerProcess, name: str, writes: Writes, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.kafka,
        transactional_id=name,
        compression_type=None if codec == "none" else codec,
    )
    try:
        producer.init_transactions()
        for commits, records in writes:
            producer.begin_transaction()
            for topic, partition, value in records:
                producer.send(topic, value, partition=partition)
            if commits:
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
    finally:
        producer.close()


def aiokafka_writes(broker: BrokerProcess, name: str, writes: Writes, codec: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.kafka,
            transactional_id=name,
            compression_type=None if codec == "none" else codec,
        )
        await producer.start()
        try:
            for commits, records in writes:
                await producer.begin_transaction()
                for topic, partition, value in records:
                    await producer.send(topic, value, partition=partition)
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.flush()
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(write())


def confluent_reads(broker: BrokerProcess, place: Place) -> list[bytes]:
    consumer = consumer_of(broker, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(*place, 0)])
        found: list[bytes] = []
        is_at_end = False
        while not is_at_end:
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    is_at_end = True
        return found
    finally:
        consumer.close()


def kafka_python_reads(broker: BrokerProcess, place: Place) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=broker.kafka, isolation_level="read_committed", group_id=None)
    try:
        at = PythonPartition(*place)
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        found: list[bytes] = []
        (end,) = consumer.end_offsets([at]).values()
        while consumer.position(at) < end:
            found += [record.value for record in consumer.poll(timeout_ms=200).get(at, [])]
        return found
    finally:
        consumer.close()


def aiokafka_reads(broker: BrokerProcess, place: Place) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.kafka, isolation_level="read_committed", group_id=None)
        await consumer.start()
        try:
            at = AioPartition(*place)
            consumer.assign([at])
            await consumer.seek_to_beginning(at)
            found: list[bytes] = []
            (end,) = (await consumer.end_offsets([at])).values()
            while await consumer.position(at) < end:
                for records in (await consumer.getmany(at, timeout_ms=200)).values():
                    found += [record.value for record in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


def kcat_reads(broker: BrokerProcess, place: Place) -> list[bytes]:
    topic, partition = place
    command = [required_program("kcat"), "-b", broker.kafka, "-C", "-t", topic, "-p", str(partition), "-e", "-q"]
    done = run([*command, "-o", "beginning", "-X", "isolation.level=read_committed"])
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WRITERS = {"confluent": confluent_writes, "kafka-python": kafka_python_writes, "aiokafka": aiokafka_writes}
READERS = [confluent_reads, kafka_python_reads, aiokafka_reads, kcat_reads]


@pytest.fixture(params=sorted(WRITERS))
def writes_as(request: pytest.FixtureRequest) -> Callable[[BrokerProcess, str, Writes, str], None]:
    return WRITERS[request.param]


def test_all_readers_agree_on_what_counts(
    broker: BrokerProcess, topics: list[str], writes_as: Callable[[BrokerProcess, str, Writes, str], None]
) -> None:
    """Several topics and partitions, every codec, every third transaction aborted."""
    places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    expected: dict[Place, list[bytes]] = {place: [] for place in places}
    for codec in CODECS:
        writes: Writes = []
        for number in range(3):
            commits = number != 1
            values = [
                (place, b"%s-%d-%d " % (codec.encode(), number, turn) + b"x" * 50)
                for place in places
                for turn in range(3)
            ]
            writes.append((commits, [(*place, value) for place, value in values]))
            if commits:
                for place, value in values:
                    expected[place].append(value)
        writes_as(broker, topics[0], writes, codec)
    for place in (places[0], places[-1]):
        for reads in READERS:
            assert reads(broker, place) == expected[place], reads.__name__


def test_confluent_that_was_replaced_is_told_so(broker: BrokerProcess, topics: list[str]) -> None:
    settings = {"bootstrap.servers": broker.kafka, "transactional.id": topics[0]}
    zombie, successor = Producer(settings), Producer(settings)
    zombie.init_transactions(PATIENCE_S)
    zombie.begin_transaction()
    zombie.produce(topics[0], b"zombie", partition=0)
    assert zombie.flush(PATIENCE_S) == 0
    successor.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()
    assert raised.value.args[0].code() == KafkaError._FENCED
    successor.begin_transaction()
    successor.produce(topics[0], b"successor", partition=0)
    successor.commit_transaction(PATIENCE_S)
    assert confluent_reads(broker, (topics[0], 0)) == [b"successor"]


def test_kafka_python_that_was_replaced_is_told_so(broker: BrokerProcess, topics: list[str]) -> None:
    zombie, successor = (KafkaProducer(bootstrap_servers=broker.kafka, transactional_id=topics[0]) for _ in range(2))
    try:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(topics[0], b"zombie", partition=0).get(PATIENCE_S)
        successor.init_transactions()
        with pytest.raises(PythonError):
            zombie.commit_transaction()
        successor.begin_transaction()
        successor.send(topics[0], b"successor", partition=0)
        successor.commit_transaction()
    finally:
        successor.close()
        zombie.close(timeout=1)
    assert kafka_python_reads(broker, (topics[0], 0)) == [b"successor"]


async def test_aiokafka_that_was_replaced_is_told_so(broker: BrokerProcess, topics: list[str]) -> None:
    zombie, successor = (AIOKafkaProducer(bootstrap_servers=broker.kafka, transactional_id=topics[0]) for _ in range(2))
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(topics[0], b"zombie", partition=0)
    await successor.start()
    try:
        with pytest.raises(AioError):
            await zombie.commit_transaction()
        await successor.begin_transaction()
        await successor.send(topics[0], b"successor", partition=0)
        await successor.commit_transaction()
    finally:
        await successor.stop()
        await zombie.stop()
    read = await asyncio.to_thread(aiokafka_reads, broker, (topics[0], 0))
    assert read == [b"successor"]


@pytest.fixture
def joined(broker: BrokerProcess, topics: list[str]) -> Iterator[Consumer]:
    """A member of a group that has read three messages of its topic's partition 0."""
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(3):
        producer.produce(topics[0], b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": topics[0],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topics[0]])
    read: list[Any] = []

    def has_read() -> bool:
        read.extend(consumer.consume(3, 0.1))
        return len(read) >= 3

    until(has_read, "three messages are read")
    yield consumer
    consumer.close()


def test_confluent_takes_offsets_along(broker: BrokerProcess, wire: Wire, topics: list[str], joined: Consumer) -> None:
    group, place = topics[0], (topics[0], 0)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": topics[0]})
    producer.init_transactions(PATIENCE_S)
    for offset, commits in ((2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(topics[1], b"%d" % offset, partition=0)
        positions = [TopicPartition(*place, offset)]
        producer.send_offsets_to_transaction(positions, joined.consumer_group_metadata(), PATIENCE_S)
        assert committed_offset(wire, group, place) == (0, -1)
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    assert committed_offset(wire, group, place, require_stable=True) == (0, 3)
    assert confluent_reads(broker, (topics[1], 0)) == [b"3"]


def test_kafka_python_takes_offsets_along(broker: BrokerProcess, wire: Wire, topics: list[str]) -> None:
    group, place = topics[0], (topics[0], 0)
    producer = KafkaProducer(bootstrap_servers=broker.kafka, transactional_id=topics[0])
    try:
        producer.init_transactions()
        for offset, commits in ((2, False), (3, True)):
            producer.begin_transaction()
            producer.send(topics[1], b"%d" % offset, partition=0)
            positions = {PythonPartition(*place): OffsetAndMetadata(offset, "", -1)}
            producer.send_offsets_to_transaction(positions, group)
            producer.commit_transaction() if commits else producer.abort_transaction()
    finally:
        producer.close()
    assert committed_offset(wire, group, place, require_stable=True) == (0, 3)
    assert kafka_python_reads(broker, (topics[1], 0)) == [b"3"]


async def test_aiokafka_takes_offsets_along(broker: BrokerProcess, wire: Wire, topics: list[str]) -> None:
    group, place = topics[0], (topics[0], 0)
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, transactional_id=topics[0])
    await producer.start()
    try:
        for offset, commits in ((2, False), (3, True)):
            await producer.begin_transaction()
            await producer.send(topics[1], b"%d" % offset, partition=0)
            await producer.send_offsets_to_transaction({AioPartition(*place): offset}, group)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    finally:
        await producer.stop()
    assert committed_offset(wire, group, place, require_stable=True) == (0, 3)
