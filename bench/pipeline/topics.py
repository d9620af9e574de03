"""Topics to be read: made, and filled with messages of one size."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client.driver import DriverError
from bench.client.payload import random_pool

KEYS = 10_000
_FLUSH_S = 600.0
_STRIDE = 131


def create(address: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def delete(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_topics([topic])[topic].result(30)


def fill(address: str, topic: str, partitions: int, rows: int, size: int) -> float:
    """Sends so many messages, evenly; gives the seconds until the broker had the last."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    pool, keys = random_pool(), [b"key-%d" % number for number in range(KEYS)]
    # Half of a message is like that of others, and half of it is not.
    half, alike = size // 2, pool[: size - size // 2]
    room = len(pool) - half
    began = time.monotonic()
    for number in range(rows):
        start = number * _STRIDE % room
        while True:
            try:
                producer.produce(topic, pool[start : start + half] + alike, keys[number % KEYS], number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(_FLUSH_S):
        raise DriverError(f"{topic}: not all messages were taken within {_FLUSH_S:.0f} s")
    return time.monotonic() - began
