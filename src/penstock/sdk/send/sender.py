"""One librdkafka producer and the thread that hands out its reports.

A thin shell: `Outgoing` in, and for each one call of `done` with a `Receipt` or a `SendError`, in the sender's thread.
A sender whose producer has failed for good (`is_spent`) takes nothing more; its owner makes a new one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.clock import Clock, SystemClock
from penstock.sdk.errors import BufferFullError, ClosedError, SendError
from penstock.sdk.failures import error_of, send_error
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.composing import is_for_later

Done = Callable[[Receipt | SendError], None]

_POLL_S = 0.1
_ROOM_S = 0.05
_AMPLE = 0.9
"""Of a bound: below it there is room for sure."""
_CHOSEN_BY_KEY = -1
_NOW = 0


class Sender:
    """Sends until it is closed, or its producer has failed for good."""

    def __init__(self, settings: dict[str, Any], clock: Clock | None = None) -> None:
        self._producer = Producer(settings)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._outstanding = 0
        self._outstanding_bytes = 0
        self._flushing = 0
        """How many wait for everything to be reported."""
        self._ample_messages = int(settings["queue.buffering.max.messages"]) * _AMPLE
        self._ample_bytes = int(settings["queue.buffering.max.kbytes"]) * 1024 * _AMPLE
        self._is_closed = False
        self._is_ending = False
        self.is_spent = False
        self._thread = threading.Thread(target=self._hand_out_reports, name="penstock-sender", daemon=True)
        self._thread.start()

    @property
    def outstanding(self) -> int:
        """How many messages have been taken and not been reported."""
        return self._outstanding

    def has_room_for(self, outgoing: Outgoing) -> bool:
        """Whether it is certain to be taken at once; said with something to spare."""
        is_few = self._outstanding < self._ample_messages
        return is_few and self._outstanding_bytes + size_of(outgoing) < self._ample_bytes

    def produce(self, outgoing: Outgoing, done: Done, room_s: float = 0.0) -> None:
        """Takes a message, waiting so long for room in the buffer; `BufferFullError` if there is none."""
        deadline = time.monotonic() + room_s
        while True:
            if self._is_closed:
                raise ClosedError("the client was closed")
            with self._changed:
                self._outstanding += 1
                self._outstanding_bytes += size_of(outgoing)
            try:
                produce(self._producer, outgoing, lambda error, message: self._report(outgoing, done, error, message))
                return
            except BufferError:
                self._forget(outgoing)
                self._wait_for_room(outgoing, deadline)
            except KafkaException as exception:
                self._forget(outgoing)
                error = error_of(exception)
                self.is_spent |= error.fatal() or error.code() == KafkaError._FATAL
                done(send_error(outgoing.topic, error))
                return

    def flush(self, timeout_s: float) -> bool:
        """Sends what waits for company, and waits until everything is reported; whether that came to be in time."""
        with self._changed:
            self._flushing += 1
            try:
                return self._changed.wait_for(lambda: self._outstanding == 0, timeout_s)
            finally:
                self._flushing -= 1

    def purge(self) -> None:
        """Gives up everything that is not reported: it is reported as failed, also what is on its way."""
        self._producer.purge()
        with self._changed:
            self._changed.wait_for(lambda: self._outstanding == 0)

    def close(self) -> None:
        """Gives up what is left; not to be called by a `done`."""
        self._is_closed = self._is_ending = True
        self.purge()
        self._thread.join()

    def retire(self) -> None:
        """Ends by itself once everything is reported; for a spent one, which takes nothing more."""
        self._is_ending = True

    def _hand_out_reports(self) -> None:
        while not self._is_ending or self._outstanding:
            try:
                # A flush sends at once what waits for company, and hands out reports as a poll does.
                self._producer.flush(_POLL_S) if self._flushing else self._producer.poll(_POLL_S)
            except KafkaException as error:
                # It has failed for good; what it has taken is reported all the same.
                self.is_spent |= error_of(error).fatal()

    def _report(self, outgoing: Outgoing, done: Done, error: KafkaError | None, message: Message) -> None:
        try:
            if error is None:
                done(receipt_of(outgoing, message, self._clock.now_ms()))
            else:
                self.is_spent |= error.fatal()
                done(send_error(outgoing.topic, error))
        finally:
            self._forget(outgoing)

    def _forget(self, outgoing: Outgoing) -> None:
        with self._changed:
            self._outstanding -= 1
            self._outstanding_bytes -= size_of(outgoing)
            self._changed.notify_all()

    def _wait_for_room(self, outgoing: Outgoing, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        with self._changed:
            if self._outstanding == 0:
                raise BufferFullError(f"a message to {outgoing.topic} is larger than the whole buffer")
            if left_s <= 0:
                raise BufferFullError(
                    f"a message to {outgoing.topic} was not taken: {self._outstanding} others wait for the cluster",
                    is_retriable=True,
                )
            self._changed.wait(min(left_s, _ROOM_S))


def size_of(outgoing: Outgoing) -> int:
    """The bytes that count for the bound of a buffer."""
    return len(outgoing.value or b"") + len(outgoing.key or b"")


def produce(producer: Producer, outgoing: Outgoing, report: Callable[[KafkaError | None, Message], None]) -> None:
    """Hands a message to librdkafka."""
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
    """What a report of success says."""
    offset = message.offset()
    is_known = offset is not None and offset >= 0 and not is_for_later(outgoing.headers, now_ms)
    return Receipt(outgoing.topic, message.partition(), offset if is_known else None)
