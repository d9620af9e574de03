"""Delayed messages, read from the topics in which brokers expose them.

Every topic has two such topics, which metadata lists only on request by name: `__timers.TOPIC` orders delayed messages
by due time; in `__timer-ids.TOPIC` the offset of a message derives from its timer id (`docs/delay.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from heapq import nsmallest
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.sdk.errors import TopicError
from penstock.sdk.kafka.connection import CREATES_NOTHING, ConnectionSettings
from penstock.sdk.kafka.librdkafka import reason_of, received_of
from penstock.sdk.kafka.unused_group import concerns_unused_group
from penstock.sdk.ports import Received
from penstock.sdk.timers import TimerQuery, WaitingMessage

_BY_DUE_TIME = "__timers."
_BY_ID = "__timer-ids."
_ID_DIGITS = 15
_REQUEST_TIMEOUT_S = 10.0
_PATIENCE_S = 30.0
_POLL_S = 0.5
_BATCH = 500
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class TimerPage:
    """Some of the messages that wait, by due time."""

    messages: list[WaitingMessage]
    next: Mapping[int, int]
    """The offset at which each partition goes on; partitions that have nothing more are left out."""


class TimerReader:
    """Reads the delayed messages of a topic. Use it in a `with` block."""

    def __init__(
        self,
        connection: ConnectionSettings,
        topic: str,
        partition: int | None = None,
        *,
        partition_count: int | None = None,
        timeout_s: float = _PATIENCE_S,
    ) -> None:
        """`partition_count` is that of the topic, if it is known. `timeout_s` is how long a broker may not answer."""
        self._topic = topic
        self._timeout_s = timeout_s
        settings = {
            "group.id": connection.client_id,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
            # Read little ahead: most of it would be discarded.
            "fetch.message.max.bytes": _READ_BYTES,
            "queued.max.messages.kbytes": _READ_BYTES >> 10,
        }
        self._consumer = Consumer({**connection.settings_for(settings), **CREATES_NOTHING})
        self._unfinished: set[int] = set()
        try:
            count = self._count() if partition_count is None else partition_count
            self._partitions = self._chosen(partition, count)
        except TopicError:
            self._consumer.close()
            raise

    def __enter__(self) -> TimerReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def due_in(self, from_ms: int, until_ms: int | None, limit: int) -> list[WaitingMessage]:
        """The first `limit` messages that are due in a window, by due time."""
        return self.page(self.starts(from_ms), from_ms, until_ms, limit).messages

    def page(self, starts: Mapping[int, int], from_ms: int, until_ms: int | None, limit: int) -> TimerPage:
        """The first `limit` messages that are due in a window, by due time, reading each partition from its start."""
        found: dict[int, list[tuple[int, WaitingMessage]]] = {partition: [] for partition in starts}
        full: set[int] = set()
        for offset, message in self._read(_BY_DUE_TIME + self._topic, starts):
            of_partition = found[message.partition]
            if until_ms is not None and message.due_ms >= until_ms:
                self._leave(message.partition)
            elif message.due_ms >= from_ms and message.partition not in full:
                of_partition.append((offset, message))
                if len(of_partition) == limit:
                    full.add(message.partition)
                    self._leave(message.partition)
        # The earliest across all partitions.
        every = (message for of_partition in found.values() for _, message in of_partition)
        chosen = nsmallest(limit, every, key=lambda message: (message.due_ms, message.partition))
        taken = Counter(message.partition for message in chosen)
        following: dict[int, int] = {}
        for partition, of_partition in found.items():
            if taken[partition] < len(of_partition):
                following[partition] = of_partition[taken[partition]][0]
            elif partition in full:
                following[partition] = of_partition[-1][0] + 1
        return TimerPage(chosen, following)

    def named(self, timer_id: str) -> list[WaitingMessage]:
        """The message with a timer id, in each partition that has one."""
        offset = int(sha256(timer_id.encode()).hexdigest()[:_ID_DIGITS], 16)
        messages = self._read(_BY_ID + self._topic, dict.fromkeys(self._partitions, offset))
        return [message for _, message in messages if message.timer_id == timer_id]

    def _count(self) -> int:
        """The partitions of the topic."""
        timeout_s = min(_REQUEST_TIMEOUT_S, self._timeout_s)
        try:
            known = self._consumer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        except KafkaException as error:
            raise TopicError(f"could not look up topic {self._topic}: {reason_of(error)}") from None
        if known.error is None:
            return len(known.partitions)
        if known.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicError(f"topic {self._topic} does not exist")
        raise TopicError(f"could not look up topic {self._topic}: {known.error.str()}")

    def _chosen(self, partition: int | None, count: int) -> list[int]:
        if partition is None:
            return list(range(count))
        if not 0 <= partition < count:
            raise TopicError(f"topic {self._topic} has no partition {partition}")
        return [partition]

    def starts(self, from_ms: int) -> Mapping[int, int]:
        """The offset to start from in each partition; omits partitions in which nothing is due then or later."""
        if from_ms <= 0:
            return dict.fromkeys(self._partitions, 0)
        asked = [TopicPartition(_BY_DUE_TIME + self._topic, number, from_ms) for number in self._partitions]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=min(_REQUEST_TIMEOUT_S, self._timeout_s))
        except KafkaException as error:
            raise TopicError(f"could not read delayed messages of {self._topic}: {reason_of(error)}") from None
        return {answer.partition: answer.offset for answer in answers if answer.offset >= 0}

    def _read(self, shown: str, starts: Mapping[int, int]) -> Iterator[tuple[int, WaitingMessage]]:
        """The messages of partitions with their offsets, from an offset to the end, or until `_leave`."""
        self._unfinished = set(starts)
        topic_partitions = [TopicPartition(shown, number, start) for number, start in starts.items()]
        self._consumer.assign(topic_partitions)
        # Partitions that an earlier read paused are still paused when they are assigned again.
        self._consumer.resume(topic_partitions)
        silent_s = 0.0
        while self._unfinished:
            # To ask for many at once would wait for as many, or for the whole timeout.
            batch: list[Any] = self._consumer.consume(1, timeout=_POLL_S)
            batch += self._consumer.consume(_BATCH, timeout=0)
            for message in batch:
                error = message.error()
                if error is None:
                    if message.partition() in self._unfinished:
                        received = received_of(message)
                        yield received.offset, self._waiting(received)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._leave(message.partition())
                elif not concerns_unused_group(error):
                    where = f"{self._topic}-{message.partition()}"
                    raise TopicError(f"could not read delayed messages of {where}: {error.str()}")
            silent_s = 0.0 if batch else silent_s + _POLL_S
            if silent_s > self._timeout_s:
                raise TopicError(f"could not read delayed messages of {self._topic}: no broker answers")

    def _waiting(self, received: Received) -> WaitingMessage:
        assert received.timestamp_ms is not None, "its timestamp is its due time"
        return WaitingMessage(
            self._topic, received.partition, received.timestamp_ms, received.value, received.key, received.headers
        )

    def _leave(self, partition: int) -> None:
        """Stop reading a partition."""
        self._unfinished.discard(partition)
        self._consumer.pause([each for each in self._consumer.assignment() if each.partition == partition])


def read_timers(connection: ConnectionSettings, query: TimerQuery) -> list[WaitingMessage]:
    """Read the delayed messages that a query asks for."""
    with TimerReader(connection, query.topic, query.partition) as reader:
        if query.timer_id is not None:
            return reader.named(query.timer_id)
        return reader.due_in(query.from_ms, query.until_ms, query.limit)
