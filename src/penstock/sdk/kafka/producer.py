"""One librdkafka producer and the thread that delivers its reports.

Takes `Outgoing` and calls `done` once for each, with a `Receipt` or a `SendError`, in its own thread. A producer that
has failed for good (`has_failed`) accepts nothing more; its owner replaces it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.clock import Clock, SystemClock
from penstock.sdk.backend import Done
from penstock.sdk.errors import BufferFullError, ClosedError, SendError
from penstock.sdk.kafka.librdkafka import error_of, send_error
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.outgoing_message import is_for_later
from penstock.sdk.send.send_outcome import SendOutcome

_POLL_S = 0.1
_ROOM_S = 0.05
_AMPLE = 0.9
"""The fraction of a bound below which there certainly is room."""
_CHOSEN_BY_KEY = -1
_NOW = 0


class KafkaProducer:
    """Sends until it is closed, or has failed for good."""

    def __init__(self, settings: dict[str, Any], clock: Clock | None = None) -> None:
        self._producer = Producer(settings)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._outstanding = 0
        self._outstanding_bytes = 0
        self._flushing = 0
        """How many callers wait for all reports."""
        self._ample_messages = int(settings["queue.buffering.max.messages"]) * _AMPLE
        self._ample_bytes = int(settings["queue.buffering.max.kbytes"]) * 1024 * _AMPLE
        self._is_closed = False
        self._is_ending = False
        self.has_failed = False
        self._thread = threading.Thread(target=self._deliver_reports, name="penstock-sender", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """Messages accepted and not reported."""
        return self._outstanding

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """Whether so many messages are certain to be accepted at once, with a margin."""
        has_message_room = self._outstanding + count - 1 < self._ample_messages
        return has_message_room and self._outstanding_bytes + size_bytes < self._ample_bytes

    def produce(self, outgoing: Outgoing, done: Done, room_s: float = 0.0) -> None:
        """Accept a message, waiting up to `room_s` for room. Raises `BufferFullError` if there is none."""
        deadline = time.monotonic() + room_s
        while True:
            if self._is_closed:
                raise ClosedError("the client is closed")
            with self._changed:
                self._outstanding += 1
                self._outstanding_bytes += outgoing.size_bytes
            try:
                produce(self._producer, outgoing, lambda error, message: self._report(outgoing, done, error, message))
                return
            except BufferError:
                self._forget(outgoing)
                self._wait_for_room(outgoing, deadline)
            except KafkaException as exception:
                self._forget(outgoing)
                error = error_of(exception)
                self.has_failed |= error.fatal() or error.code() == KafkaError._FATAL
                done(send_error(outgoing.topic, error))
                return

    def produce_many(self, messages: Sequence[Outgoing], outcome: SendOutcome, room_s: float = 0.0) -> None:
        """Accept messages one by one: librdkafka makes batches of them. From the first one that finds no room within
        `room_s` on, all fail. Raises `BufferFullError` if that is the first of all.
        """
        until_s = time.monotonic() + room_s
        for place, outgoing in enumerate(messages):
            try:
                self.produce(outgoing, partial(outcome.answered, place), max(0.0, until_s - time.monotonic()))
            except (BufferFullError, ClosedError) as error:
                if not place:
                    raise
                failure = error if isinstance(error, SendError) else SendError(str(error), is_retriable=True)
                outcome.failed(range(place, len(messages)), failure)
                return

    def flush(self, timeout_s: float) -> bool:
        """Send lingering messages now, and wait for all reports; whether they arrived in time."""
        with self._changed:
            self._flushing += 1
            try:
                return self._changed.wait_for(lambda: self._outstanding == 0, timeout_s)
            finally:
                self._flushing -= 1

    def purge(self) -> None:
        """Give up everything unreported: it is reported as failed, also what is in transit."""
        self._producer.purge()
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0)

    def close(self) -> None:
        """Give up what is left. Must not be called by a `done`."""
        self._is_closed = self._is_ending = True
        self.purge()
        self._thread.join()

    def retire(self) -> None:
        """End once everything is reported; for a producer that accepts nothing more."""
        self._is_ending = True

    def _deliver_reports(self) -> None:
        while not self._is_ending or self._outstanding:
            try:
                # A flush sends lingering messages now, and delivers reports as a poll does.
                self._producer.flush(_POLL_S) if self._flushing else self._producer.poll(_POLL_S)
            except KafkaException as error:
                # It has failed for good, but still reports what it accepted.
                self.has_failed |= error_of(error).fatal()

    def _report(self, outgoing: Outgoing, done: Done, error: KafkaError | None, message: Message) -> None:
        try:
            if error is None:
                done(receipt_of(outgoing, message, self._clock.now_ms()))
            else:
                self.has_failed |= error.fatal()
                done(send_error(outgoing.topic, error))
        finally:
            self._forget(outgoing)

    def _forget(self, outgoing: Outgoing) -> None:
        with self._changed:
            self._outstanding -= 1
            self._outstanding_bytes -= outgoing.size_bytes
            self._changed.notify_all()

    def _wait_for_room(self, outgoing: Outgoing, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        with self._changed:
            if self._outstanding == 0:
                raise BufferFullError(f"a message to {outgoing.topic} is larger than the buffer")
            if left_s <= 0:
                raise BufferFullError(
                    f"no room for a message to {outgoing.topic}: {self._outstanding} messages wait for the cluster",
                    is_retriable=True,
                )
            self._changed.wait(min(left_s, _ROOM_S))


def produce(producer: Producer, outgoing: Outgoing, report: Callable[[KafkaError | None, Message], None]) -> None:
    """Pass a message to librdkafka."""
    producer.produce(
        outgoing.topic,
        outgoing.value,
        outgoing.key,
        _CHOSEN_BY_KEY if outgoing.partition is None else outgoing.partition,
        on_delivery=report,
        timestamp=_NOW if outgoing.timestamp_ms is None else outgoing.timestamp_ms,
        headers=list(outgoing.headers),
    )


def receipt_of(outgoing: Outgoing, message: Message, now_ms: int) -> Receipt:
    """The receipt for a report of success."""
    offset = message.offset()
    is_known = offset is not None and offset >= 0 and not is_for_later(outgoing.headers, now_ms)
    return Receipt(outgoing.topic, message.partition(), offset if is_known else None)
