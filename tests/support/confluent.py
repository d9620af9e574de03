"""confluent-kafka without consumer groups: sending, and reading what was assigned."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from support.broker_process import BrokerProcess
from support.waiting import PATIENCE_S, until


def consumer_of(broker: BrokerProcess, **more: Any) -> Consumer:
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": "never joined",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
    }
    return Consumer(settings | more)


def send(broker: BrokerProcess, topic: str, values: list[bytes | None], **more: Any) -> list[Message]:
    """Produces to partition 0 and gives the reports; every message must have arrived."""
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5} | more)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    assert len(reports) == len(values)
    return reports


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=0.5):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count
    return found


def error_of(message: Message) -> int:
    error = message.error()
    assert error is not None
    return error.code()


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = error.value.args[0].code()
    return code


def join_without_reading(consumer: Consumer, topic: str) -> list[list[TopicPartition]]:
    """Subscribes, and returns when the consumer has its partitions; the polls that this takes give it no message.

    What is returned are the assignments so far; a later rebalance adds another.
    """
    assignments: list[list[TopicPartition]] = []

    def assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.assign(partitions)
        if not assignments:
            consumer.pause(partitions)
        assignments.append(partitions)

    consumer.subscribe([topic], on_assign=assign)
    until(lambda: consumer.poll(0) or assignments, "the member has its partitions")
    consumer.resume(assignments[0])
    return assignments
