"""Messages through a delay bridge: sending them with their due times, and collecting what arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.messages import headers_of
from support.waiting import PATIENCE_S

PREFIX = "later-"
"""Of headers that a Penstock broker leaves to the bridge."""
PREFIXED = ("--header-prefix", PREFIX)


class Arrived(NamedTuple):
    """A message as a consumer of the target got it."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes | None]
    partition: int
    timestamp_ms: int
    """When it was forwarded."""


def create_topics(kafka: str, topics: Mapping[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_topics([NewTopic(name, partitions, 1) for name, partitions in topics.items()])
    for future in made.values():
        future.result(PATIENCE_S)


def asking(target: str | None = None, **headers: str) -> list[tuple[str, bytes]]:
    """Headers for the bridge: `asking("orders", delay="5s", timer_id="7")`."""
    named = {**({} if target is None else {"target": target}), **headers}
    return [(PREFIX + name.replace("_", "-"), text.encode()) for name, text in named.items()]


class Sender:
    """Every message must be acknowledged."""

    def __init__(self, kafka: str, max_bytes: int = 1_000_000) -> None:
        settings = {"bootstrap.servers": kafka, "linger.ms": 5, "acks": "all", "message.max.bytes": max_bytes}
        self._producer = Producer(settings)
        self._errors: list[KafkaError] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
        *,
        key: bytes | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> None:
        self._producer.produce(
            topic,
            value,
            key=key,
            headers=list(headers),
            partition=partition,
            timestamp=timestamp_ms,
            on_delivery=self._report,
        )
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._errors, self._errors

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(error)


def collect(
    kafka: str,
    topic: str,
    is_enough: Callable[[list[Arrived]], bool],
    *,
    patience_s: float = PATIENCE_S,
    quiet_s: float = 0.0,
) -> list[Arrived]:
    """What committed messages a topic has, from its start; reads on for `quiet_s` to find what should not be there."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "never joined",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        consumer.assign([TopicPartition(topic, number, 0) for number in known.partitions])
        found: list[Arrived] = []
        deadline = time.monotonic() + patience_s
        until_s: float | None = None
        while until_s is None or time.monotonic() < until_s:
            for message in consumer.consume(1000, timeout=0.2):
                assert message.error() is None, message.error()
                found.append(_arrived(message))
            if until_s is None and is_enough(found):
                until_s = time.monotonic() + quiet_s
            assert until_s is not None or time.monotonic() < deadline, f"{topic} has {len(found)} messages"
        return found
    finally:
        consumer.close()


def _arrived(message: Message) -> Arrived:
    return Arrived(
        message.value(), message.key(), dict(headers_of(message)), message.partition() or 0, message.timestamp()[1]
    )


def values_of(arrived: Iterable[Arrived]) -> list[bytes]:
    return [each.value or b"" for each in arrived]
