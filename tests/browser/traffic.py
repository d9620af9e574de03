"""What goes on in a cluster while its pages are looked at: topics with messages, and a group that reads."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic


def named(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def make_topic(kafka: str, name: str, values: Sequence[bytes], partitions: int = 1, **settings: str) -> None:
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(name, partitions, config=config)])[name].result()
    producer = Producer({"bootstrap.servers": kafka})
    for number, value in enumerate(values):
        producer.produce(name, value, key=f"key-{number}")
    assert producer.flush(30) == 0


@contextmanager
def running_group(kafka: str, group: str, topic: str) -> Iterator[list[Message]]:
    """A member that reads, and what it has read so far."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        }
    )
    consumer.subscribe([topic])
    read: list[Message] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                read.append(message)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield read
    finally:
        is_over.set()
        thread.join()
        consumer.close()
