"""Producers as a client owns them, and the one that buffers in memory (`Keep`, `Drop`).

`spilling_producer.py` and `group_commit.py` contain the other two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from penstock.sdk.backend import BatchProducer
from penstock.sdk.errors import BufferFullError, SendError, SendManyError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.send_outcome import Receipts, SendOutcome


class ClosableProducer(Protocol):
    """A producer that its client flushes and closes."""

    @property
    def buffered(self) -> int:
        """Messages in memory that are not answered yet."""
        ...

    @property
    def spilled(self) -> int:
        """Messages on disk that are not sent yet."""
        ...

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """Whether so many messages do not have to wait for room."""
        ...

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        """Like `MessageProducer.send_soon`, but waits up to `room_s` for room."""
        ...

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        """The same for messages of one topic, at least one. The future holds the receipts, or `SendManyError`."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is answered; whether it was."""
        ...

    def close(self, timeout_s: float) -> None:
        """Flush, then give up what is left."""
        ...


def promise() -> Future[Receipt]:
    """A future that cannot be cancelled: the message is being sent."""
    future: Future[Receipt] = Future()
    future.set_running_or_notify_cancel()
    return future


def settle(future: Future[Receipt], result: Receipt | SendError) -> None:
    """Complete the future of a message."""
    if isinstance(result, Receipt):
        future.set_result(result)
    else:
        future.set_exception(result)


class BufferedProducer:
    """Buffers in memory only. Replaces a producer that has failed for good."""

    spilled = 0

    def __init__(self, new_producer: Callable[[], BatchProducer], on_away: Callable[[], None] | None = None) -> None:
        self._new_producer = new_producer
        self._on_away = on_away
        """Called for each message that was given up because the cluster was unreachable."""
        self._lock = threading.Lock()
        self._producer = new_producer()

    @property
    def buffered(self) -> int:
        return self._producer.outstanding

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        return self._producer.has_room_for(count, size_bytes)

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        future = promise()

        def done(result: Receipt | SendError) -> None:
            if self._on_away is not None and isinstance(result, SendError) and result.is_retriable:
                self._on_away()
            settle(future, result)

        try:
            self._usable_producer().produce(outgoing, done, room_s)
        except BufferFullError as error:
            done(error)
        return future

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        outcome = SendOutcome(messages[0].topic, len(messages))
        if self._on_away is not None:
            outcome.future.add_done_callback(self._count_given_up)
        try:
            self._usable_producer().produce_many(messages, outcome, room_s)
        except BufferFullError as error:
            outcome.failed(range(len(messages)), error)
        return outcome.future

    def _count_given_up(self, future: Future[Receipts]) -> None:
        assert self._on_away is not None
        error = future.exception()
        for result in error.results if isinstance(error, SendManyError) else ():
            if isinstance(result, SendError) and result.is_retriable:
                self._on_away()

    def flush(self, timeout_s: float) -> bool:
        return self._producer.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)
        self._producer.close()

    def _usable_producer(self) -> BatchProducer:
        if self._producer.has_failed:
            with self._lock:
                if self._producer.has_failed:
                    self._producer.retire()
                    self._producer = self._new_producer()
        return self._producer
