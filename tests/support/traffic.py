"""A producer and a consumer group that do not stop, and every failure that one of them is told of."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

from support.access import Access, librdkafka, parse
from support.messages import place_of
from support.pulse import PATIENT
from support.waiting import PATIENCE_S, until

_BEAT_S = 0.01
_OF_CONNECTIONS = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""The client goes on by itself: a broker that stops closes its connections."""


class Traffic:
    """Numbered messages through one topic, from entering its `with` until `finish`.

    A failure is a message that was not delivered, or what a consumer or a commit ends with. That a client lost a
    connection and made another one is none.
    """

    def __init__(self, writes_at: str, reads_at: str, topic: str, partitions: int, group: str) -> None:
        self._topic = topic
        self._partitions = partitions
        self.failures: list[str] = []
        self._acknowledged: set[int] = set()
        self._seen: list[int] = []
        self._places: dict[int, int] = {}
        """By partition: the offset behind the last message that was seen."""
        self._stop = threading.Event()
        self._is_sent = threading.Event()
        self._producer = Producer({**librdkafka(writes_at), **PATIENT})
        self._consumer = Consumer(
            {
                **librdkafka(reads_at),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
                "on_commit": self._committed,
            }
        )
        self._consumer.subscribe([topic])
        self._new_logins: dict[Producer | Consumer, Access] = {}
        self._threads = [threading.Thread(target=each, name=each.__name__) for each in (self._write, self._read)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def log_in_as(self, writes_at: str, reads_at: str) -> None:
        """From the next login on. The clients go on meanwhile.

        Each thread tells its own client: while one is in a call of the library, which it nearly always is, another
        thread's call may wait for ever.
        """
        for client, bootstrap in ((self._producer, writes_at), (self._consumer, reads_at)):
            _, access = parse(bootstrap)
            assert access is not None
            self._new_logins[client] = access
        until(lambda: not self._new_logins, "the clients have their new passwords")

    def _take_new_login(self, client: Producer | Consumer) -> None:
        access = self._new_logins.get(client)
        if access is not None:
            client.set_sasl_credentials(access.user, access.password)
            del self._new_logins[client]

    def wait_for_more(self, count: int = 100) -> None:
        """Waits until so many more messages have come through."""
        before = len(self._seen)
        until(lambda: len(self._seen) >= before + count, f"{count} more messages, {self.failures[:3]}", 2 * PATIENCE_S)

    def finish(self) -> int:
        """Stops writing, and waits until all is read; how many messages that were. Nothing may have failed."""
        self._stop.set()
        self._threads[0].join()
        until(
            lambda: not self._acknowledged - set(self._seen),
            f"all of {len(self._acknowledged)} messages are read",
            2 * PATIENCE_S,
        )
        self._end()
        assert not self.failures, "\n".join(self.failures[:10])
        return len(self._acknowledged)

    def _end(self) -> None:
        self._stop.set()
        self._is_sent.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._acknowledged.add(int(message.value() or b""))
            else:
                self.failures.append(f"not delivered: {error}")

        number = 0
        while not self._stop.wait(_BEAT_S):
            self._take_new_login(self._producer)
            self._producer.produce(self._topic, str(number), partition=number % self._partitions, on_delivery=report)
            self._producer.poll(0)
            number += 1
        left = self._producer.flush(4 * PATIENCE_S)
        if left:
            self.failures.append(f"not delivered: {left} messages are left")

    def _read(self) -> None:
        while not self._is_sent.is_set():
            self._take_new_login(self._consumer)
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    self._note(message)
                elif error.code() not in _OF_CONNECTIONS:
                    self.failures.append(f"not read: {error}")
        self._consumer.close()

    def _note(self, message: Message) -> None:
        partition, offset = place_of(message)
        expected = self._places.get(partition, offset)
        if offset != expected:
            self.failures.append(f"{self._topic}-{partition}: {offset} came where {expected} was expected")
        self._places[partition] = offset + 1
        self._seen.append(int(message.value() or b""))

    def _committed(self, error: KafkaError | None, places: Any) -> None:
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            self.failures.append(f"not committed: {error}")
