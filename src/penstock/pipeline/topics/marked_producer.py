"""A producer whose transactions carry a mark: records and the fact that they were sent are one.

The mark is an offset of a group that has the producer's own name and no members. It rises with every transaction.

Rules:
- A producer that opens a name fences every other producer of that name, and only then looks at the mark.
- Nothing is sent outside a transaction. If anything fails in one, the producer aborts it, or leaves that to the next.
- The mark is committed for partition 0 of a topic that is written to: a group's offset needs a partition that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from penstock.clock import SystemClock
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.kafka import TIMEOUT_S, Brokers, quiet, reason_of
from penstock.pipeline.topics.row_records import OutgoingRecord

# Records wait in a transaction until it is committed: as long as brokers allow by default.
_TRANSACTION_MS = 15 * 60 * 1000
_COMMIT_S = 300.0
_ABORT_S = 5.0
_FULL_S = 0.5


@dataclass(frozen=True, slots=True)
class Mark:
    """What the last transaction left."""

    number: int
    """From 0."""
    said: str


class MarkedProducer:
    """One name's producer, from `open` to `close`."""

    def __init__(self, kafka: Mapping[str, str], name: str) -> None:
        from confluent_kafka import Consumer, Producer

        self._kafka = kafka
        self._name = name
        ours = {"transaction.timeout.ms": _TRANSACTION_MS, "linger.ms": 20}
        self._producer = Producer(quiet(ours | dict(kafka) | {"transactional.id": name}))
        # A consumer that reads nothing: the client gives a group's name to a transaction in no other way.
        self._member = Consumer(quiet(dict(kafka) | {"group.id": name, "enable.auto.commit": False}))

    def __enter__(self) -> MarkedProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self._member.close()

    def open(self) -> Mark | None:
        """Fences all others of the name; gives the mark."""
        from confluent_kafka import KafkaException

        try:
            self._producer.init_transactions(TIMEOUT_S)
        except KafkaException as error:
            raise self._failed(error) from None
        return mark_of(self._kafka, self._name)

    def send(self, rows: Iterable[OutgoingRecord], mark: Callable[[], Mark], topic: str) -> None:
        """Sends the rows and sets the mark, or neither; calls `mark` after the last row. `topic` is one of theirs."""
        from confluent_kafka import KafkaException

        try:
            self._producer.begin_transaction()
            for row in rows:
                self._produce(row)
            self._set(mark(), topic)
            self._commit()
        except BaseException as error:
            # Left open it would hold back readers until its time is over. One that was fenced cannot abort.
            with suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
            if isinstance(error, KafkaException):
                raise self._failed(error) from None
            raise

    def _produce(self, row: OutgoingRecord) -> None:
        while True:
            try:
                self._producer.produce(
                    row.topic, row.value, row.key, row.partition, timestamp=row.time_ms, headers=row.headers or None
                )
                return
            except BufferError:
                self._producer.poll(_FULL_S)

    def _set(self, mark: Mark, topic: str) -> None:
        from confluent_kafka import TopicPartition

        offset = TopicPartition(topic, 0, mark.number + 1, mark.said)
        self._producer.send_offsets_to_transaction([offset], self._member.consumer_group_metadata(), TIMEOUT_S)

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        clock = SystemClock()
        begun_ms = clock.monotonic_ms()
        while True:
            try:
                self._producer.commit_transaction(TIMEOUT_S)
                return
            except KafkaException as error:
                # Also a time-out: the client goes on with the same commit when it is called again.
                is_late = clock.monotonic_ms() - begun_ms > _COMMIT_S * 1000
                if is_late or not error.args[0].retriable():
                    raise

    def _failed(self, error: Exception) -> PipelineError:
        return PipelineError(f"write {self._name}: {reason_of(error)}")


def mark_of(kafka: Mapping[str, str], name: str) -> Mark | None:
    """The mark that a name has left; it may change while the name's producer runs."""
    found = Brokers(kafka).committed_by(name)
    # Transactions may have gone to different topics; the last one counts.
    last = max((each for each in found if each.offset > 0), key=lambda each: each.offset, default=None)
    return None if last is None else Mark(last.offset - 1, last.metadata)


def forget(kafka: Mapping[str, str], names: Iterable[str]) -> None:
    """Removes marks that no producer will look at again; what cannot be removed expires by itself."""
    Brokers(kafka).delete_groups(names)
