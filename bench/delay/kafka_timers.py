"""Delayed messages over the Kafka protocol, with confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client.driver import DriverError, NotReady
from bench.delay.clients import DUE, PADDING, Received, now_ms

_ANSWER_S = 10.0
_QUIET: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}


class KafkaTimers:
    client = f"confluent-kafka {confluent_kafka.__version__}"

    def create(self, address: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": address, **_QUIET})
        try:
            admin.create_topics([NewTopic(topic, 1)], request_timeout=_ANSWER_S)[topic].result(_ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise NotReady(str(error)) from error

    def send(self, address: str, topic: str, dues: Iterable[int], limit_s: float) -> int:
        failed: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer(
            {
                "bootstrap.servers": address,
                "linger.ms": 50,
                "batch.num.messages": 2000,
                "queue.buffering.max.messages": 200_000,
                "enable.idempotence": True,
                **_QUIET,
            }
        )
        count = 0
        for due in dues:
            headers: list[tuple[str, str | bytes | None]] = [("penstock-deliver-at", b"%d" % due)]
            while True:
                try:
                    producer.produce(topic, DUE.pack(due) + PADDING, partition=0, headers=headers, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.05)
            count += 1
            if count % 1000 == 0:
                producer.poll(0)
        if producer.flush(limit_s) or failed:
            raise DriverError(f"messages were not taken: {failed[:1]}")
        return count

    def receive(self, address: str, topic: str, count: int, limit_s: float) -> Received:
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 1000,
                **_QUIET,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = Received()
        deadline = time.monotonic() + limit_s
        try:
            while len(found) < count:
                if time.monotonic() > deadline:
                    raise DriverError(f"{len(found):,} of {count:,} messages came in time")
                first = consumer.poll(0.5)
                taken = [first, *consumer.consume(2000, timeout=0)] if first is not None else []
                arrived = now_ms()
                for message in taken:
                    if message.error() is None:
                        (due,) = DUE.unpack_from(message.value() or b"")
                        found.add(due, message.timestamp()[1], arrived)
        finally:
            consumer.close()
        return found
