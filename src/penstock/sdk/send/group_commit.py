"""The producer of exactly-once: messages that arrive while a transaction commits share the next one.

Outside `client.transaction()` an application does not say what belongs together, so each message stands alone: a
refused one does not keep the others from being sent. A failed transaction is repeated with the same messages, unless
its outcome is unknown: then they could become visible twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from penstock.sdk.errors import BufferFullError, ClosedError, InvalidInputError, SendError, TransactionError
from penstock.sdk.ports import MessageProducer, Outgoing, Receipt
from penstock.sdk.send.buffered_producer import promise, settle
from penstock.sdk.send.send_outcome import Receipts, send_each

_MAX_PER_TRANSACTION = 10_000
"""The largest number of messages in a transaction."""
_RETRY_S = 0.1


class _Bounds(Protocol):
    """`Keep` or `Drop`."""

    @property
    def messages(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(slots=True)
class _QueuedSend:
    outgoing: Outgoing
    future: Future[Receipt]
    deadline: float
    is_alone: bool = False
    """It was in a refused transaction: sent alone, it shows whether it is the cause."""


class GroupCommitProducer:
    """Buffers messages up to a bound, and sends them in transactions, in order."""

    spilled = 0

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[MessageProducer]],
        bounds: _Bounds,
        timeout_s: float,
        on_away: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._transaction = transaction
        self._bounds = bounds
        self._timeout_s = timeout_s
        self._on_away = on_away
        self._on_close = on_close
        self._changed = threading.Condition()
        self._waiting: deque[_QueuedSend] = deque()
        self._waiting_bytes = 0
        self._under_way = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-group-commit", daemon=True)
        self._thread.start()

    @property
    def buffered(self) -> int:
        return len(self._waiting) + self._under_way

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        with self._changed:
            return self._has_room(size_bytes, count)

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        pending = _QueuedSend(outgoing, promise(), time.monotonic() + self._timeout_s)
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._has_room(outgoing.size_bytes) or self._is_closed, room_s)
            if self._is_closed:
                raise ClosedError("the client is closed")
            if has_room:
                self._waiting.append(pending)
                self._waiting_bytes += outgoing.size_bytes
                self._changed.notify_all()
        if not has_room:
            others = f"{self.buffered} messages wait for the cluster"
            self._fail(
                pending, BufferFullError(f"no room for a message to {outgoing.topic}: {others}", is_retriable=True)
            )
        return pending.future

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        return send_each(messages, self.send_soon, room_s, self._on_away)

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._under_way, timeout_s)

    def close(self, timeout_s: float) -> None:
        self.flush(timeout_s)
        with self._changed:
            self._is_closed = True
            left = [*self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for pending in left:
            self._fail(
                pending,
                SendError(
                    f"gave up sending a message to {pending.outgoing.topic}: the client was closed", is_retriable=True
                ),
            )
        self._thread.join()
        if self._on_close is not None:
            self._on_close()

    def _has_room(self, size: int, count: int = 1) -> bool:
        if not self._waiting and count == 1:
            return True
        has_message_room = len(self._waiting) + count <= self._bounds.messages
        return has_message_room and self._waiting_bytes + size <= self._bounds.bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                batch = [self._waiting.popleft() for _ in range(min(_MAX_PER_TRANSACTION, len(self._waiting)))]
                if not batch:
                    return
                self._waiting_bytes -= sum(pending.outgoing.size_bytes for pending in batch)
                self._under_way = len(batch)
                self._changed.notify_all()
            while batch:
                size = 1 if batch[0].is_alone else sum(1 for _ in takewhile(lambda each: not each.is_alone, batch))
                batch = [*self._send_batch(batch[:size]), *batch[size:]]
                with self._changed:
                    self._under_way = len(batch)
                    self._changed.notify_all()

    def _send_batch(self, batch: list[_QueuedSend]) -> list[_QueuedSend]:
        """Send them in one transaction, and return those to repeat."""
        futures: list[Future[Receipt]] = []
        try:
            with self._transaction() as transaction:
                futures = [transaction.send_soon(pending.outgoing) for pending in batch]
        except (TransactionError, InvalidInputError) as error:
            return self._to_retry(batch, futures, error)
        for pending, future in zip(batch, futures, strict=True):
            settle(pending.future, future.result())
        return []

    def _to_retry(
        self,
        batch: list[_QueuedSend],
        futures: list[Future[Receipt]],
        failure: TransactionError | InvalidInputError,
    ) -> list[_QueuedSend]:
        """After a failed transaction: fail the message that caused it and those out of time, and return the others."""
        wait(futures)
        errors = [future.exception() for future in futures] or [None] * len(batch)
        is_over = isinstance(failure, InvalidInputError) or failure.is_unknown or self._is_closed
        to_retry: list[_QueuedSend] = []
        for pending, error in zip(batch, errors, strict=True):
            if isinstance(error, SendError) and not error.is_retriable and len(batch) == 1:
                self._fail(pending, error)
            elif is_over or time.monotonic() > pending.deadline:
                self._fail(pending, SendError(f"could not send a message: {failure}", is_retriable=True))
            else:
                # A broker refuses a batch as a whole, perhaps because of another message.
                pending.is_alone = isinstance(error, SendError) and not error.is_retriable
                to_retry.append(pending)
        if to_retry and not any(pending.is_alone for pending in to_retry):
            time.sleep(_RETRY_S)
        return to_retry

    def _fail(self, pending: _QueuedSend, error: SendError) -> None:
        if self._on_away is not None and error.is_retriable:
            self._on_away()
        settle(pending.future, error)
