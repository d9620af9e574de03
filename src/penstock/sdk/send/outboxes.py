"""Outboxes: what takes messages from the application and sees to it that each is answered.

`DirectOutbox` hands them to librdkafka (`Keep`, `Drop`); `spilling.py` and `group_commit.py` have the other two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from penstock.sdk.errors import BufferFullError, SendError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.sender import Sender


class ClosableOutbox(Protocol):
    """An outbox as its client owns it."""

    @property
    def buffered(self) -> int:
        """Messages in memory that have not been answered."""
        ...

    @property
    def spilled(self) -> int:
        """Messages on disk that have not been sent."""
        ...

    def has_room_for(self, outgoing: Outgoing) -> bool:
        """Whether `send_soon` does not have to wait for room."""
        ...

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        """As `Outbox.send_soon`, but waits so long for room."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything is answered; whether it was."""
        ...

    def close(self, timeout_s: float) -> None:
        """Flushes, then gives up what is left."""
        ...


def promise() -> Future[Receipt]:
    """A future that nobody can cancel: the message is on its way."""
    future: Future[Receipt] = Future()
    future.set_running_or_notify_cancel()
    return future


def settle(future: Future[Receipt], result: Receipt | SendError) -> None:
    """Answers."""
    if isinstance(result, Receipt):
        future.set_result(result)
    else:
        future.set_exception(result)


class DirectOutbox:
    """Memory only. A producer that has failed for good is replaced."""

    spilled = 0

    def __init__(self, new_sender: Callable[[], Sender], on_away: Callable[[], None] | None = None) -> None:
        self._new_sender = new_sender
        self._on_away = on_away
        """Called for each message that was given up because the cluster was away."""
        self._lock = threading.Lock()
        self._sender = new_sender()

    @property
    def buffered(self) -> int:
        return self._sender.outstanding

    def has_room_for(self, outgoing: Outgoing) -> bool:
        return self._sender.has_room_for(outgoing)

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        future = promise()

        def done(result: Receipt | SendError) -> None:
            if self._on_away is not None and isinstance(result, SendError) and result.is_retriable:
                self._on_away()
            settle(future, result)

        try:
            self._usable_sender().produce(outgoing, done, room_s)
        except BufferFullError as error:
            done(error)
        return future

    def flush(self, timeout_s: float) -> bool:
        return self._sender.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        self._sender.flush(timeout_s)
        self._sender.close()

    def _usable_sender(self) -> Sender:
        if self._sender.is_spent:
            with self._lock:
                if self._sender.is_spent:
                    self._sender.retire()
                    self._sender = self._new_sender()
        return self._sender
