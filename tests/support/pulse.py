"""A producer that never rests: one message after the other to every partition, and when each was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from support import access
from support.messages import place_of
from support.producers import Origin, origins
from support.waiting import PATIENCE_S, until

_BEAT_S = 0.02

PATIENT: dict[str, Any] = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.timeout.ms": 120_000,
    # A broker that is stopped keeps its connections: they are given up by time.
    "socket.timeout.ms": 3_000,
    "request.timeout.ms": 2_500,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
"""Settings of a producer that is not content before it is acknowledged, whatever happens to brokers."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What lies in the topic, beside what was acknowledged; all but the first should be zero."""

    acknowledged: int
    lost: int
    moved: int
    """Found, but not at the offset that the producer was told."""
    doubled: int
    out_of_order: int
    unplaced: int
    """Acknowledged as sent before, without a word of where it is; not a fault by itself."""
    resent: int = 0
    """Found again, written by the same producer in a later epoch: then it was the client who sent it anew. librdkafka
    does so when a batch is refused for the one before it, while others are on their way whose fate it does not know.
    """
    examples: tuple[str, ...] = ()
    """Where something is wrong, of each kind the first and the last."""

    @property
    def is_good(self) -> bool:
        return (self.lost, self.moved, self.doubled, self.out_of_order) == (0, 0, 0, 0)


class Pulse:
    """Idempotent, acks=all; sends from entering its `with` until `finish`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse")
        self._acked: dict[int, tuple[int, int | None]] = {}
        self._acked_at: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.failed: list[str] = []
        self.ends: dict[int, int] = {}
        """By partition: the offset behind the last message that was acknowledged, where the client was told it."""
        self.found: list[tuple[int, int, int]] = []
        """Partition, offset and number of all that lies in the topic; known when it is finished."""

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int = 5, patience_s: float = 2 * PATIENCE_S) -> None:
        """Waits until so many more are acknowledged in every partition."""
        before = {partition: len(at) for partition, at in self._acked_at.items()}

        def is_so() -> bool:
            return all(len(at) >= before[partition] + count for partition, at in self._acked_at.items())

        until(is_so, f"{count} more messages are acknowledged in every partition", patience_s)

    @property
    def acknowledged_at(self) -> list[list[float]]:
        """The moments, by `time.monotonic`, of each partition."""
        return [list(at) for at in self._acked_at.values()]

    def longest_gap_s(self, since: float = 0.0) -> float:
        """The longest time between two acknowledgements in one partition, after a moment of `time.monotonic`."""
        return max(
            (b - a for at in self._acked_at.values() for a, b in pairwise(list(at)) if b > since),
            default=0.0,
        )

    def finish(self) -> Tally:
        """Stops, waits for what is under way, and reads the topic."""
        self._stop.set()
        self._thread.join()
        self.found = [(*place_of(message), int(message.value() or b"")) for message in self._read()]
        found = self.found
        counted = Counter(number for _, _, number in found)
        again = {partition for partition, _, number in found if counted[number] > 1}
        return tally(self._acked, found, origins(self._bootstrap, self._topic, again) if again else {})

    def _beat(self) -> None:
        producer = Producer({**access.librdkafka(self._bootstrap), **PATIENT})

        def report(number: int, partition: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(f"{number}: {error}")
                return
            self._acknowledged(number, partition, message.offset())

        number = 0
        while not self._stop.is_set():
            for partition in range(self._partitions):
                producer.produce(
                    self._topic,
                    str(number),
                    partition=partition,
                    on_delivery=partial(report, number, partition),
                )
                number += 1
            producer.poll(_BEAT_S)
            self._stop.wait(_BEAT_S)
        producer.flush(4 * PATIENCE_S)

    def _acknowledged(self, number: int, partition: int, offset: int | None) -> None:
        """`offset` is None if the client was only told that it had sent this before."""
        self._acked[number] = (partition, offset)
        self._acked_at[partition].append(time.monotonic())
        if offset is not None:
            self.ends[partition] = max(offset + 1, self.ends.get(partition, 0))

    def _read(self) -> list[Message]:
        consumer = Consumer(
            {
                **access.librdkafka(self._bootstrap),
                "group.id": "never joined",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(self._partitions)])
        found: list[Message] = []
        ended: set[int] = set()

        def is_read() -> bool:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(place_of(message)[0])
                elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise KafkaException(error)
            return len(ended) == self._partitions

        try:
            until(is_read, f"{self._topic} is read to its end", 2 * PATIENCE_S, progress=lambda: len(found))
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))


def tally(
    acked: Mapping[int, tuple[int, int | None]],
    found: Sequence[tuple[int, int, int]],
    written_by: Mapping[tuple[int, int], Origin],
) -> Tally:
    """Compares what was acknowledged, by number, with what was found: partition, offset and number, in order.

    `written_by` says of partition and offset by which producer, and in which epoch of it, for all that is found twice.
    """
    places: dict[int, list[tuple[int, int]]] = {}
    numbers: dict[int, list[int]] = {}
    doubled: list[str] = []
    resent = 0
    for partition, offset, number in found:
        before = places.setdefault(number, [])
        before.append((partition, offset))
        if len(before) > 1:
            if len({written_by[place] for place in before}) == len(before):
                resent += 1
                continue
            doubled.append(f"doubled: {number} at {', '.join(f'{place} by {written_by[place]}' for place in before)}")
        numbers.setdefault(partition, []).append(number)
    lost = [f"lost: {number}, acknowledged at {place}" for number, place in acked.items() if number not in places]
    return Tally(
        acknowledged=len(acked),
        lost=len(lost),
        moved=sum(
            # A producer that is told "you have sent this before" does not learn where it is.
            place[1] is not None and number in places and place not in places[number]
            for number, place in acked.items()
        ),
        doubled=len(doubled),
        out_of_order=sum(a > b for each in numbers.values() for a, b in pairwise(each)),
        unplaced=sum(offset is None for _, offset in acked.values()),
        resent=resent,
        examples=(*lost[:1], *lost[1:][-1:], *doubled[:1], *doubled[1:][-1:]),
    )
