"""A consumer that reads a topic from its beginning all the time, and notices what is missing or comes again."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from support.access import librdkafka
from support.waiting import PATIENCE_S, until

_SHOWN = 10
_SILENT_S = 60.0
"""So long librdkafka is never silent, which tells how it is once a second: its main thread is stuck then. Seen once in
an hour of faults, by a client that fetches from followers; what it fetched already still came, and nothing else.
"""
_SHOWN_OF_A_PARTITION = ("broker", "leader", "fetch_state", "fetchq_cnt", "next_offset", "hi_offset", "ls_offset")


class SteadyReader(threading.Thread):
    """Of a topic whose messages are numbers, and whose offsets have no gaps."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, name: str, settings: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._address = bootstrap
        self._topic = topic
        self._settings = settings or {}
        self._numbers = [array("q") for _ in range(partitions)]
        """What was read, by partition; the index is the offset."""
        self._stop_asked = threading.Event()
        self.violations: list[str] = []
        """The first of them."""
        self.skipped = 0
        """Offsets that were passed over."""
        self.repeated = 0
        """Offsets that came again, or too late."""
        self._seen: dict[str, dict[str, object]] = {}
        """What librdkafka last told of each partition."""
        self._told_at_s = 0.0
        """When it told that: it does so by a timer of its own, whatever brokers do."""
        self.hung_clients = 0
        """How many stood still inside, and were replaced."""

    @property
    def count(self) -> int:
        """How many messages were read."""
        return sum(map(len, self._numbers))

    def run(self) -> None:
        while not self._stop_asked.is_set():
            consumer = self._new_consumer()
            if self._has_hung(consumer):
                # Its main thread does nothing any more. Closing it would wait for that, and so would its end, which
                # never comes if somebody has a reference for ever.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))
                self.hung_clients += 1
            else:
                consumer.close()

    def _new_consumer(self) -> Consumer:
        """Goes on where the one before has come to."""
        consumer = Consumer(
            {
                **librdkafka(self._address),
                "group.id": "never joined",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 50,
                "statistics.interval.ms": 1000,
                "log_level": 0,
                **self._settings,
            },
            stats_cb=self._look,
        )
        consumer.assign(
            [TopicPartition(self._topic, partition, len(numbers)) for partition, numbers in enumerate(self._numbers)]
        )
        return consumer

    def _has_hung(self, consumer: Consumer) -> bool:
        """Reads until it is told to stop, or until librdkafka tells nothing of itself any more."""
        self._told_at_s = time.monotonic()
        while not self._stop_asked.is_set():
            if time.monotonic() > self._told_at_s + _SILENT_S:
                return True
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    self.note(message.partition() or 0, message.offset() or 0, int(message.value() or b""))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self._complain(f"lost its place in {self._topic}-{message.partition()}: {error}")
        return False

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            # librdkafka closes a consumer only when its brokers have answered, and after a fault some never will.
            self.join(PATIENCE_S)

    def wait_for_all(self, found: Sequence[tuple[int, int, int]], patience_s: float) -> None:
        """Waits until all of it was read; where not, says at which partition the reader stands still, and why."""
        try:
            until(
                lambda: self.count >= len(found),
                f"{self.name} has read all",
                patience_s,
                progress=lambda: self.count,
            )
        except AssertionError as stuck:
            ends = Counter(partition for partition, _, _ in found)
            behind = [
                f"{self._topic}-{partition}: read {len(numbers)} of {ends[partition]},"
                f" librdkafka: {self._seen.get(str(partition))}"
                for partition, numbers in enumerate(self._numbers)
                if len(numbers) < ends[partition]
            ]
            raise AssertionError("\n".join([str(stuck), *self.violations, *behind])) from stuck

    def compare(self, found: Iterable[tuple[int, int, int]]) -> None:
        """Whether the topic has the same at the end; `found` has partition, offset and number, in order."""
        for partition, messages in groupby(found, key=lambda message: message[0]):
            told = array("q", (number for _, _, number in messages))
            if told != self._numbers[partition]:
                self._complain(f"read something else in {self._topic}-{partition} than there is at the end")

    def note(self, partition: int, offset: int, number: int) -> None:
        """A message was read."""
        numbers = self._numbers[partition]
        if offset == len(numbers):
            numbers.append(number)
            return
        self.skipped += max(0, offset - len(numbers))
        self.repeated += offset < len(numbers)
        self._complain(f"read {self._topic}-{partition}@{offset} where {len(numbers)} comes next")

    def look(self, partition: Mapping[str, Any]) -> None:
        """What librdkafka tells of a partition, once a second."""

    def _look(self, statistics: str) -> None:
        self._told_at_s = time.monotonic()
        topics = json.loads(statistics)["topics"]
        for number, partition in topics.get(self._topic, {}).get("partitions", {}).items():
            self._seen[number] = {name: partition[name] for name in _SHOWN_OF_A_PARTITION}
            self.look(partition)

    def _complain(self, violation: str) -> None:
        if len(self.violations) < _SHOWN:
            self.violations.append(f"{self.name} {violation}")
