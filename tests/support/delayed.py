"""Messages for later: sending them with confluent-kafka, and collecting what arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from support.messages import headers_of
from support.waiting import PATIENCE_S

Headers = Sequence[tuple[str, bytes]]


class Arrival(NamedTuple):
    """One message as a consumer got it."""

    value: bytes
    offset: int
    headers: dict[str, bytes]
    timestamp_ms: int


class Sending(NamedTuple):
    value: bytes
    headers: Headers = ()
    key: bytes | None = None


def delayed(value: bytes, delay: str, **more: str) -> Sending:
    """A message with `penstock-delay` and, of `more`, other headers of ours."""
    headers = [("penstock-delay", delay.encode())]
    headers += [(f"penstock-{name.replace('_', '-')}", text.encode()) for name, text in more.items()]
    return Sending(value, headers)


def send(kafka: str, topic: str, messages: Iterable[Sending], partition: int = 0, **settings: object) -> list[int]:
    """Sends, and gives the offsets that were told; every message must have been taken."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, **settings})
    return send_with(producer, topic, messages, partition)


def send_with(producer: Producer, topic: str, messages: Iterable[Sending], partition: int = 0) -> list[int]:
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset() or 0)

    for message in messages:
        producer.produce(
            topic,
            message.value,
            key=message.key,
            partition=partition,
            headers=list(message.headers),
            on_delivery=report,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not errors, errors
    return offsets


def refusal(kafka: str, topic: str, message: Sending) -> KafkaError:
    """The error with which a message is refused."""
    refused: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka, "retries": 0})
    producer.produce(
        topic,
        message.value,
        partition=0,
        headers=list(message.headers),
        on_delivery=lambda error, _: refused.append(error),
    )
    producer.flush(PATIENCE_S)
    assert len(refused) == 1 and refused[0] is not None, refused
    return refused[0]


class Arrivals:
    """A consumer of one partition from its beginning."""

    def __init__(self, kafka: str, topic: str, partition: int = 0, *, isolation: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "never joined",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0)])
        self.all: list[Arrival] = []
        self.values: list[bytes] = []

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def until(self, count: int, patience_s: float = PATIENCE_S) -> list[Arrival]:
        """Returns when so many have arrived."""
        return self.until_true(lambda: len(self.all) >= count, f"{count} messages", patience_s)

    def until_seen(self, value: bytes, patience_s: float = PATIENCE_S) -> list[Arrival]:
        """Returns when this one has arrived."""
        return self.until_true(lambda: self.values[-1:] == [value], str(value), patience_s)

    def until_true(self, look: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> list[Arrival]:
        deadline = time.monotonic() + patience_s
        while not look():
            assert time.monotonic() < deadline, f"{what}: not within {patience_s:g} s, but {self.values[-20:]}"
            self.poll(0.1)
        return self.all

    def poll(self, wait_s: float) -> None:
        message = self._consumer.poll(wait_s)
        if message is None or message.error() is not None:
            return
        self.values.append(message.value() or b"")
        self.all.append(
            Arrival(
                self.values[-1],
                message.offset() or 0,
                {name: value or b"" for name, value in headers_of(message)},
                message.timestamp()[1],
            )
        )


def assert_not_early(arrivals: Iterable[Arrival]) -> None:
    """Whatever was delayed says when it was due; its timestamp says when it was delivered."""
    for arrival in arrivals:
        due = arrival.headers.get("penstock-deliver-at")
        if due is not None:
            assert arrival.timestamp_ms >= int(due), arrival
