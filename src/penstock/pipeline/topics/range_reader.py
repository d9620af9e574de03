"""Reads a range of offsets from the brokers: what a task does, on whatever machine Spark runs it.

Rules:
- All records of the range come, in order, or an error does.
- Offsets have gaps, so nothing is counted: the range is done when a record at or behind its end is seen, or the end of
  the log is, at or behind the end of the range.
- What waits in memory is bounded: by `BATCH_ROWS` and about `BATCH_BYTES` for a list of messages, and by the client's
  `queued.max.messages.kbytes` for what is read ahead.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import SystemClock
from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.topics.kafka import TIMEOUT_S, Brokers, quiet
from penstock.pipeline.topics.ranges import Range

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20

_POLL_S = 0.1
_FIRST_ROWS = 64
_WEIGHED = 64
_READ_AHEAD = 100_000
_FETCH_BYTES = 1 << 20
# What is read ahead of the task should still be in the processor's caches when it is used.
_READ_AHEAD_KIB = 8 << 10
_LOOK_AGAIN_MS = 5
# Messages come and go by the ten thousand and are in no cycles: looking for some among them is half of a task's time.
_COLLECT_AFTER = 200_000


class RangeReader:
    """A client for reading ranges, one after the other."""

    def __init__(
        self, kafka: Mapping[str, str], *, longest: int, fail_on_data_loss: bool, poll_timeout_ms: int
    ) -> None:
        """`longest` is the length of the longest range."""
        from confluent_kafka import Consumer

        ours = {
            "group.id": "penstock-spark",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # A task that wants ten records does not read ahead a hundred thousand.
            "queued.min.messages": max(1, min(_READ_AHEAD, longest)),
            "queued.max.messages.kbytes": _READ_AHEAD_KIB,
            "fetch.message.max.bytes": _FETCH_BYTES,
            # Having read that far ahead, the client looks away for a second if nothing is said.
            "fetch.queue.backoff.ms": _LOOK_AGAIN_MS,
        }
        self._kafka = kafka
        self._fails = fail_on_data_loss
        self._poll_timeout_ms = poll_timeout_ms
        self._consumer = Consumer(quiet(ours | dict(kafka)))

    def __enter__(self) -> RangeReader:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(_COLLECT_AFTER)
        return self

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._thresholds)
        self._consumer.close()

    def read(self, wanted: Range) -> Iterator[Sequence[Message]]:
        """The messages of a range, some at a time."""
        return _Fetch(self._consumer, wanted, self._fails, self._poll_timeout_ms).run()

    def verify(self, topic: str, topic_id: str) -> None:
        """Asked last: whatever was read, was read from this topic, and not from one made since under its name."""
        now = Brokers(self._kafka).topics([topic]).get(topic)
        if self._fails and (now is None or now.topic_id != topic_id):
            what = "was deleted" if now is None else "was deleted and made anew"
            raise DataLossError(f"topic {topic} {what} while it was read; failOnDataLoss=false reads what there is")


class _Fetch:
    """One range on its way."""

    def __init__(self, consumer: Consumer, wanted: Range, fail_on_data_loss: bool, poll_timeout_ms: int) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._fails = fail_on_data_loss
        self._poll_timeout_ms = poll_timeout_ms
        self._clock = SystemClock()
        self._position = wanted.start
        self._is_done = wanted.length <= 0
        self._trouble = "the broker sends nothing"

    def run(self) -> Iterator[Sequence[Message]]:
        if not self._is_done:
            self._seek(self._wanted.start)
        rows, moved_ms = _FIRST_ROWS, self._clock.monotonic_ms()
        while not self._is_done:
            # Never more than what is left, so that the client does not wait for messages behind the range.
            left = max(1, self._wanted.end - self._position)
            taken = self._consumer.consume(min(rows, left), timeout=_POLL_S)
            before = self._position
            messages = [each for each in taken if each.error() is None]
            if len(messages) < len(taken):
                self._heed(taken)
            if messages:
                self._position = _offset(messages[-1]) + 1
                rows = _next_rows(messages)
                if self._position >= self._wanted.end:
                    self._is_done = True
                    messages = [each for each in messages if _offset(each) < self._wanted.end]
            if messages:
                yield messages
            now_ms = self._clock.monotonic_ms()
            if self._position > before:
                moved_ms = self._clock.monotonic_ms()
            elif now_ms - moved_ms > self._poll_timeout_ms and not self._is_done:
                raise PipelineError(
                    f"{self._wanted}: got no further than {self._position} within {self._poll_timeout_ms} ms "
                    f"({self._trouble})"
                )

    def _seek(self, offset: int) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(self._wanted.topic, self._wanted.partition, offset)])
        self._position = offset

    def _heed(self, taken: Sequence[Message]) -> None:
        """What the client has to say besides messages."""
        from confluent_kafka import KafkaError

        from penstock.sdk.kafka.unused_group import concerns_unused_group

        for message in taken:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._ended(_offset(message))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                self._lost(" ".join(error.str().split()))
            elif error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                self._trouble = " ".join(error.str().split())
            elif not concerns_unused_group(error):
                raise PipelineError(f"{self._wanted}: {' '.join(error.str().split())}")

    def _ended(self, at: int) -> None:
        if at >= self._wanted.end:
            self._is_done = True
        else:
            # A new leader may not know yet that more is committed; if more never comes, the wait ends in an error.
            self._trouble = f"its log ends at {at}"

    def _lost(self, why: str) -> None:
        from confluent_kafka import TopicPartition

        at = TopicPartition(self._wanted.topic, self._wanted.partition)
        low, high = self._consumer.get_watermark_offsets(at, timeout=TIMEOUT_S)
        if self._fails:
            raise DataLossError(
                f"{self._wanted}: offset {self._position} is not there, the log holds {low} to {high} ({why}); "
                "failOnDataLoss=false reads what there is"
            )
        if low >= self._wanted.end or low <= self._position:
            # All of it is gone, or was cut off at the end.
            self._is_done = True
        else:
            self._seek(low)


def _next_rows(messages: Sequence[Message]) -> int:
    seen = messages[-_WEIGHED:]
    size = sum(map(len, seen)) // len(seen) + 1
    return max(1, min(BATCH_ROWS, BATCH_BYTES // size))


def _offset(message: Message) -> int:
    offset: Any = message.offset()
    return int(offset)
