"""Shops whose orders have tags, and consumers of views: the same questions, asked with each client library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import kafka
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.messages import place_of
from support.programs import required_program, run
from support.waiting import PATIENCE_S

TAGS = "penstock-tags"


class Shown(NamedTuple):
    """A record as a consumer of a view is given it."""

    partition: int
    offset: int
    value: bytes


class Order(NamedTuple):
    """What is sent to a base."""

    value: bytes
    tags: str | None = None
    partition: int = 0


def create(admin: AdminClient, base: str, view: str, tags: str, partitions: int = 1, **config: str) -> None:
    """A topic and a view of it."""
    topics = [
        NewTopic(base, num_partitions=partitions, replication_factor=1, config=config),
        NewTopic(view, config={"penstock.view.of": base, "penstock.view.tags": tags}),
    ]
    for made in admin.create_topics(topics).values():
        made.result(PATIENCE_S)


def send(broker: BrokerProcess, base: str, *batches: Sequence[Order], **settings: object) -> None:
    """Sends each list together, and returns when all have arrived."""
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 20} | settings)
    failed: list[object] = []
    for orders in batches:
        for order in orders:
            headers: list[tuple[str, str | bytes | None]] = []
            if order.tags is not None:
                headers.append((TAGS, order.tags.encode()))
            producer.produce(
                base,
                order.value,
                partition=order.partition,
                headers=headers,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
    assert not failed


def expected(orders: Sequence[Order], is_shown: Callable[[frozenset[str]], bool]) -> list[Shown]:
    """What a view shows of orders that were all that was ever sent, in this order."""
    ends: dict[int, int] = {}
    found = []
    for order in orders:
        offset = ends.get(order.partition, 0)
        ends[order.partition] = offset + 1
        if is_shown(frozenset(order.tags.split(",") if order.tags else ())):
            found.append(Shown(order.partition, offset, order.value))
    return sorted(found)


Reader = Callable[..., tuple[list[Shown], dict[int, int]]]
"""Reads partitions of a topic from the given offsets until its position is at their ends; what it was given, and where
it would go on.
"""


def confluent_read(
    broker: BrokerProcess, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], *, committed: bool = False
) -> tuple[list[Shown], dict[int, int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "never joined",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    places = [TopicPartition(topic, index, offset) for index, offset in starts.items()]
    consumer.assign(places)
    found: list[Shown] = []
    positions: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while not _are_at(positions, ends) and time.monotonic() < deadline:
        for message in consumer.consume(500, timeout=0.1):
            assert message.error() is None, message.error()
            found.append(Shown(*place_of(message), message.value() or b""))
        positions = {each.partition: each.offset for each in consumer.position(places)}
    consumer.close()
    return sorted(found), positions


def kafka_python_read(
    broker: BrokerProcess, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], *, committed: bool = False
) -> tuple[list[Shown], dict[int, int]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.kafka,
        group_id=None,
        isolation_level="read_committed" if committed else "read_uncommitted",
    )
    places = {index: kafka.TopicPartition(topic, index) for index in starts}
    consumer.assign(list(places.values()))
    for index, offset in starts.items():
        consumer.seek(places[index], offset)
    found: list[Shown] = []
    positions: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while not _are_at(positions, ends) and time.monotonic() < deadline:
        for records in consumer.poll(100).values():
            found += [Shown(record.partition, record.offset, record.value) for record in records]
        positions = {index: consumer.position(place) for index, place in places.items()}
    consumer.close()
    return sorted(found), positions


def aiokafka_read(
    broker: BrokerProcess, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], *, committed: bool = False
) -> tuple[list[Shown], dict[int, int]]:
    async def read() -> tuple[list[Shown], dict[int, int]]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=broker.kafka,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        await consumer.start()
        places = {index: AioPartition(topic, index) for index in starts}
        consumer.assign(list(places.values()))
        for index, offset in starts.items():
            consumer.seek(places[index], offset)
        found: list[Shown] = []
        positions: dict[int, int] = {}
        deadline = time.monotonic() + PATIENCE_S
        while not _are_at(positions, ends) and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += [Shown(record.partition, record.offset, record.value) for record in records]
            positions = {index: await consumer.position(place) for index, place in places.items()}
        await consumer.stop()
        return sorted(found), positions

    return asyncio.run(read())


def kcat_read(
    broker: BrokerProcess, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], *, committed: bool = False
) -> tuple[list[Shown], dict[int, int]]:
    """It ends by itself when it has come to the end; where that was it does not say."""
    level = "read_committed" if committed else "read_uncommitted"
    found: list[Shown] = []
    for index, offset in starts.items():
        command = [required_program("kcat"), "-b", broker.kafka, "-C", "-t", topic, "-p", str(index), "-o", str(offset)]
        done = run([*command, "-e", "-q", "-f", "%p %o %s\n", "-X", f"isolation.level={level}"])
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            partition, at, value = line.split(b" ", 2)
            found.append(Shown(int(partition), int(at), value))
    return sorted(found), dict(ends)


READERS: dict[str, Reader] = {
    "confluent-kafka": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
    "kcat": kcat_read,
}


def _are_at(positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(positions.get(index, -1) >= end for index, end in ends.items())
