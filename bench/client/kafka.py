"""Kafka-protocol load through librdkafka, the same settings for every server.

The settings that librdkafka needs to keep up with a fast broker are here; above all `fetch.queue.backoff.ms`:
with its default of a second, a consumer that ran into the prefetch limit sleeps while the broker idles.
"""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Callable, Mapping

from bench.client import librdkafka, topics, wire
from bench.client.driver import STAMP, DriverError, Load, Publisher, Subscriber, endpoint
from bench.client.librdkafka import (
    CONSUMER,
    MSG_F_BLOCK,
    MSG_F_COPY,
    OFFSET_BEGINNING,
    PRODUCER,
    Handle,
    Message,
)

CHUNK = 1024
COMMON = {"socket.nagle.disable": "true", "log_level": "0"}
_PRODUCER = {
    "delivery.report.only.error": "true",
    "queue.buffering.max.kbytes": "262144",
    "message.timeout.ms": "120000",
}
_CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": "false",
    "fetch.queue.backoff.ms": "1",
    "queued.min.messages": "1000000",
}


def producer_settings(load: Load) -> dict[str, str]:
    """The load in librdkafka's words."""
    settings = {
        "acks": load.acks,
        "enable.idempotence": str(load.idempotent).lower(),
        "batch.size": str(load.batch_bytes),
        "linger.ms": str(load.linger_ms),
        "compression.type": load.codec,
        "queue.buffering.max.messages": "1000000",
    }
    if load.one_per_request:
        # A short queue: what is still queued when time is up has to be sent too.
        settings |= {"batch.num.messages": "1", "queue.buffering.max.messages": "2000"}
    if load.in_flight is not None:
        settings["max.in.flight.requests.per.connection"] = str(load.in_flight)
    return settings


class KafkaPublisher:
    """One producer bound to one topic."""

    def __init__(self, address: str, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        self._handle = Handle(PRODUCER, {"bootstrap.servers": address, **COMMON, **_PRODUCER, **settings})
        self._topic = self._handle.topic(topic)
        self._partitions = partitions
        self._next = 0
        self._array: ctypes.Array[Message] | None = None
        self._pool: ctypes.Array[ctypes.c_char] | None = None

    def connect(self) -> None:
        for _ in range(self._partitions):
            self.send(b"connect")
        self.flush(60)

    def prepare(self, pool: bytes, size: int) -> None:
        """Point a chunk of messages at different places of the pool."""
        # The array holds bare addresses, so the pool is kept beside it.
        self._pool = ctypes.create_string_buffer(pool, len(pool))
        start = ctypes.addressof(self._pool)
        self._array = (Message * CHUNK)()
        for index in range(CHUNK):
            self._array[index].payload = start + (index * 7919) % (len(pool) - size)
            self._array[index].len = size

    def send_many(self, count: int) -> None:
        """Queue prepared messages, a chunk a partition in turn; blocks while the queue is full."""
        if self._array is None:
            raise DriverError("prepare() comes first")
        left = count
        while left > 0:
            size = min(CHUNK, left)
            taken = self._handle.lib.rd_kafka_produce_batch(self._topic, self._turn(), MSG_F_BLOCK, self._array, size)
            if taken != size:
                code = next(message.err for message in self._array[:size] if message.err)
                raise DriverError(f"{size - taken} messages refused: {self._handle.describe(code)}")
            left -= size

    def send(self, body: bytes) -> None:
        flags = MSG_F_COPY | MSG_F_BLOCK
        if self._handle.lib.rd_kafka_produce(self._topic, self._turn(), flags, body, len(body), None, 0, None):
            raise DriverError(self._handle.describe(self._handle.lib.rd_kafka_last_error()))

    def flush(self, timeout_s: float) -> None:
        code = self._handle.lib.rd_kafka_flush(self._handle.pointer, int(timeout_s * 1000))
        if code or self._handle.failed:
            told = self._handle.describe(code) if code else f"{self._handle.failed} messages lost"
            raise DriverError(f"flush: {told} {self._handle.last_error}")

    def close(self) -> None:
        self._handle.lib.rd_kafka_topic_destroy(self._topic)
        self._handle.close()

    def _turn(self) -> int:
        turn = self._next
        self._next = (turn + 1) % self._partitions
        return turn


class KafkaSubscriber:
    """Reads all partitions of one topic without a group, so that only fetching is measured."""

    def __init__(self, address: str, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        self._handle = Handle(CONSUMER, {"bootstrap.servers": address, **COMMON, **_CONSUMER, **settings})
        self._name = topic
        self._partitions = partitions
        self._topic = self._handle.topic(topic)
        self._queue: int = self._handle.lib.rd_kafka_queue_new(self._handle.pointer)
        self._ends: list[int] = []

    def connect(self) -> None:
        self._ends = [self._handle.watermarks(self._name, index)[1] for index in range(self._partitions)]

    def _start(self) -> None:
        for partition in range(self._partitions):
            if self._handle.lib.rd_kafka_consume_start_queue(self._topic, partition, OFFSET_BEGINNING, self._queue):
                raise DriverError(self._handle.describe(self._handle.lib.rd_kafka_last_error()))

    def count(self, expected: int, timeout_s: float) -> None:
        """Read to the ends seen at `connect`, throwing the messages away inside the library.

        The library wants a callback a message; `rd_kafka_version` takes no argument and changes nothing, so
        it stands in for an empty one, and no Python runs a message. The number served counts the library's
        own events too, so the end is decided by the partitions' positions.
        """
        if sum(self._ends) < expected:
            raise DriverError(f"{sum(self._ends)} messages are stored, {expected} were acknowledged")
        self._start()
        lib = self._handle.lib
        nothing = ctypes.cast(lib.rd_kafka_version, ctypes.c_void_p)
        deadline = time.monotonic() + timeout_s
        served = 0
        while True:
            got = lib.rd_kafka_consume_callback_queue(self._queue, 20, nothing, None)
            if got < 0:
                raise DriverError(self._handle.describe(lib.rd_kafka_last_error()))
            served += got
            if served >= expected and self._handle.positions(self._name, self._partitions) == self._ends:
                return
            if time.monotonic() > deadline:
                raise DriverError(f"about {served} of {expected} messages came: {self._handle.last_error}")

    def each(self, on_body: Callable[[bytes], bool], timeout_s: float) -> None:
        self._start()
        lib = self._handle.lib
        deadline = time.monotonic() + timeout_s
        going = True
        while going and time.monotonic() < deadline:
            message = lib.rd_kafka_consume_queue(self._queue, 100)
            if not message:
                continue
            entry = message.contents
            if entry.err == 0:
                going = on_body(ctypes.string_at(entry.payload, min(entry.len, STAMP.size)))
            lib.rd_kafka_message_destroy(message)

    def close(self) -> None:
        for partition in range(self._partitions):
            self._handle.lib.rd_kafka_consume_stop(self._topic, partition)
        self._handle.lib.rd_kafka_queue_destroy(self._queue)
        self._handle.lib.rd_kafka_topic_destroy(self._topic)
        self._handle.close()


class KafkaDialect:
    """The Kafka protocol."""

    def __init__(self, ca_file: str = "") -> None:
        self._security = {"security.protocol": "ssl", "ssl.ca.location": ca_file} if ca_file else {}

    @property
    def client(self) -> str:
        return f"librdkafka {librdkafka.version()}"

    def create(self, address: str, topic: str, partitions: int, replicas: int = 1) -> None:
        topics.create_topics(address, [topic], partitions, replicas)

    def delete(self, address: str, topic: str) -> None:
        topics.delete_topics(address, [topic])

    def publisher(self, address: str, topic: str, partitions: int, load: Load) -> Publisher:
        return KafkaPublisher(address, topic, partitions, producer_settings(load) | self._security)

    def subscriber(self, address: str, topic: str, partitions: int, size: int) -> Subscriber:
        return KafkaSubscriber(address, topic, partitions, self._security)

    def probe(self, address: str) -> None:
        wire.metadata_and_produce(endpoint(address), "bench-ready")

    def idle_connection(self, address: str) -> socket.socket:
        return wire.idle_connection(endpoint(address))
