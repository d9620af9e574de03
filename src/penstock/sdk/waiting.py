"""Messages that wait for their time, read from the topics that show them.

Every topic has two of those, which only those who ask by name see: `__timers.TOPIC` has what waits by due time, and in
`__timer-ids.TOPIC` the offset of a message is made from its timer id (`docs/delay.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from heapq import nsmallest
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.sdk.access import Access
from penstock.sdk.decoding import received_of
from penstock.sdk.errors import TopicError
from penstock.sdk.failures import reason_of
from penstock.sdk.headers import SCHEDULE, TIMER_ID, text_of
from penstock.sdk.ports import Headers, Received

_BY_DUE_TIME = "__timers."
_BY_ID = "__timer-ids."
_ID_DIGITS = 15
_ANSWER_S = 10.0
_PATIENCE_S = 30.0
_POLL_S = 0.5
_BATCH = 500
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits for its time."""

    topic: str
    partition: int
    due_ms: int
    """When it will be delivered, in milliseconds since 1970; for one that recurs, the next time."""
    value: bytes | None
    key: bytes | None
    headers: Headers

    @property
    def timer_id(self) -> str | None:
        """The name by which it can be cancelled or replaced."""
        return text_of(self.headers, TIMER_ID)

    @property
    def schedule(self) -> str | None:
        """When it recurs; None if it is delivered once."""
        return text_of(self.headers, SCHEDULE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of the messages that wait somebody asks for."""

    topic: str
    timer_id: str | None = None
    """All under this name, however many and whenever they are due; else those of the window."""
    from_ms: int = 0
    until_ms: int | None = None
    limit: int = 100
    partition: int | None = None


class WaitingRoom:
    """What waits in a topic; to be used in a `with`."""

    def __init__(self, access: Access, topic: str, partition: int | None = None) -> None:
        self._topic = topic
        self._consumer = Consumer(
            access.settings_for(
                {
                    "group.id": access.client_id,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": 10,
                    # What is read ahead and then not wanted is work for nothing.
                    "fetch.message.max.bytes": _READ_BYTES,
                    "queued.max.messages.kbytes": _READ_BYTES >> 10,
                }
            )
        )
        self._unfinished: set[int] = set()
        try:
            self._partitions = self._chosen(partition)
        except TopicError:
            self._consumer.close()
            raise

    def __enter__(self) -> WaitingRoom:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def due_in(self, from_ms: int, until_ms: int | None, limit: int) -> list[WaitingMessage]:
        """The first so many that are due in a window, by due time."""
        found: list[WaitingMessage] = []
        counts: Counter[int] = Counter()
        for message in self._read(_BY_DUE_TIME + self._topic, self._starts(from_ms)):
            if until_ms is not None and message.due_ms >= until_ms:
                self._leave(message.partition)
            elif message.due_ms >= from_ms and counts[message.partition] < limit:
                found.append(message)
                counts[message.partition] += 1
                if counts[message.partition] == limit:
                    self._leave(message.partition)
        # The earliest of all, however they are spread.
        return nsmallest(limit, found, key=lambda message: (message.due_ms, message.partition))

    def named(self, timer_id: str) -> list[WaitingMessage]:
        """The message that waits under a name, in each partition that has one."""
        offset = int(sha256(timer_id.encode()).hexdigest()[:_ID_DIGITS], 16)
        messages = self._read(_BY_ID + self._topic, dict.fromkeys(self._partitions, offset))
        return [message for message in messages if message.timer_id == timer_id]

    def _chosen(self, partition: int | None) -> list[int]:
        try:
            # All topics: to ask for one by name would make it, where the broker makes topics on demand.
            known = self._consumer.list_topics(timeout=_ANSWER_S).topics.get(self._topic)
        except KafkaException as error:
            raise TopicError(f"topic {self._topic} could not be looked up: {reason_of(error)}") from None
        if known is None:
            raise TopicError(f"there is no topic {self._topic}")
        if partition is None:
            return sorted(known.partitions)
        if partition not in known.partitions:
            raise TopicError(f"topic {self._topic} has no partition {partition}")
        return [partition]

    def _starts(self, from_ms: int) -> Mapping[int, int]:
        """Where to begin in each partition; one in which nothing is due then or later is left out."""
        if from_ms <= 0:
            return dict.fromkeys(self._partitions, 0)
        asked = [TopicPartition(_BY_DUE_TIME + self._topic, number, from_ms) for number in self._partitions]
        try:
            answers = self._consumer.offsets_for_times(asked, timeout=_ANSWER_S)
        except KafkaException as error:
            raise TopicError(f"what waits in {self._topic} cannot be read: {reason_of(error)}") from None
        return {answer.partition: answer.offset for answer in answers if answer.offset >= 0}

    def _read(self, shown: str, starts: Mapping[int, int]) -> Iterator[WaitingMessage]:
        """The messages of partitions from an offset on, up to the end, or until they are left."""
        self._unfinished = set(starts)
        self._consumer.assign([TopicPartition(shown, number, start) for number, start in starts.items()])
        silent_s = 0.0
        while self._unfinished:
            batch: list[Any] = self._consumer.consume(_BATCH, timeout=_POLL_S)
            for message in batch:
                error = message.error()
                if error is None:
                    if message.partition() in self._unfinished:
                        yield self._waiting(received_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._leave(message.partition())
                else:
                    where = f"{self._topic}-{message.partition()}"
                    raise TopicError(f"what waits in {where} cannot be read: {error.str()}")
            silent_s = 0.0 if batch else silent_s + _POLL_S
            if silent_s > _PATIENCE_S:
                raise TopicError(f"what waits in {self._topic} cannot be read: no broker answers")

    def _waiting(self, received: Received) -> WaitingMessage:
        assert received.timestamp_ms is not None, "its timestamp is its due time"
        return WaitingMessage(
            self._topic, received.partition, received.timestamp_ms, received.value, received.key, received.headers
        )

    def _leave(self, partition: int) -> None:
        """Nothing more of it is wanted."""
        self._unfinished.discard(partition)
        self._consumer.pause([each for each in self._consumer.assignment() if each.partition == partition])


def waiting(access: Access, wanted: Wanted) -> list[WaitingMessage]:
    """What waits, as it is now."""
    with WaitingRoom(access, wanted.topic, wanted.partition) as room:
        if wanted.timer_id is not None:
            return room.named(wanted.timer_id)
        return room.due_in(wanted.from_ms, wanted.until_ms, wanted.limit)
