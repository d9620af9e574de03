"""A consumer that was told an epoch in which nothing has been written yet keeps its place when leadership changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Producer, TopicPartition

from support.broker_process import BrokerProcess
from support.epochs import raise_epoch
from support.waiting import PATIENCE_S
from support.wire import Wire, batch_of

BrokerFactory = Callable[..., BrokerProcess]


def test_who_waits_at_the_end_of_a_log_is_not_sent_back_to_its_beginning(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.produce(topic, batch_of(b"a", b"b", b"c"))

    def begin_epoch(epoch: int) -> None:
        assert broker.stop() == 0
        asyncio.run(raise_epoch(broker, topic, epoch))
        broker.start()

    begin_epoch(4)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "never joined",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    values: list[bytes | None] = []
    ends = 0

    def poll_until(is_enough: Callable[[], bool]) -> None:
        nonlocal ends
        deadline = time.monotonic() + PATIENCE_S
        while not is_enough():
            assert time.monotonic() < deadline, values
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ends += 1

    poll_until(lambda: ends > 0)
    begin_epoch(6)
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"new", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    poll_until(lambda: b"new" in values)
    consumer.close()
    assert values == [b"new"]
