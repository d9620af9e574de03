"""A topic with thousands of partitions, made and removed on a real broker while another client is at work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]

PARTITIONS = 10_000
TURNS = 3


def answered_meanwhile(wire: Wire, small: str, until: Future[None]) -> int:
    """How many turns of Metadata and Produce another client gets until something is done."""
    turns = 0
    while not until.done():
        assert wire.metadata(small)["error_code"] == 0
        assert wire.produce(small, batch_of(b"x"))["error_code"] == 0
        turns += 1
    until.result()
    return turns


def test_others_are_served_while_a_topic_of_thousands_of_partitions_comes_and_goes(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    with Wire(broker.address) as wire:
        wire.create_topic("small")
        made = admin.create_topics([NewTopic("many", PARTITIONS, 1)], operation_timeout=60, request_timeout=60)["many"]
        assert answered_meanwhile(wire, "small", made) >= TURNS
        assert len(wire.metadata("many")["partitions"]) == PARTITIONS
        gone = admin.delete_topics(["many"], operation_timeout=60, request_timeout=60)["many"]
        answered_meanwhile(wire, "small", gone)
        assert wire.metadata("many")["error_code"] == 3
        assert wire.produce("small", batch_of(b"x"))["error_code"] == 0


def test_thousands_of_partitions_are_written_to_with_few_files_open_and_come_back(new_broker: BrokerFactory) -> None:
    limit = 64
    broker = new_broker({"limits.open_files": limit})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic("many", 1000, 1)])["many"].result(60)
    others = len(os.listdir(f"/proc/{broker.pid}/fd"))
    assert others < limit, "a partition without records has no file"
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 50})
    failed: list[object] = []
    for number in range(1000):
        producer.produce("many", b"%d" % number, partition=number, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert set(failed) == {None}
    assert broker.metric("penstock_open_files") <= limit
    for _ in range(2):
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("many", number, 0) for number in range(1000)])
        found: dict[int | None, bytes | None] = {}
        while len(found) < 1000:
            message = consumer.poll(30)
            assert message is not None and message.error() is None
            found[message.partition()] = message.value()
        consumer.close()
        assert found == {number: b"%d" % number for number in range(1000)}
        assert broker.metric("penstock_open_files") <= limit
        broker.restart()
