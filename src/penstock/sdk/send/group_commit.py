"""The outbox of exactly-once: messages that come while a transaction is being committed share the next one.

Outside of `client.transaction()` an application does not say what belongs together, so each message stands for itself:
one that is refused does not keep the others from being sent. A transaction that fails is tried again with the same
messages; but not if it cannot be known whether it was committed, for then they could be seen twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from penstock.sdk.errors import BufferFullError, ClosedError, InvalidInputError, SendError, TransactionError
from penstock.sdk.ports import Outbox, Outgoing, Receipt
from penstock.sdk.send.outboxes import promise, settle
from penstock.sdk.send.sender import size_of

_TOGETHER = 10_000
"""Messages of one transaction at most."""
_AGAIN_S = 0.1


class _Bounds(Protocol):
    """`Keep` and `Drop`."""

    @property
    def messages(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(slots=True)
class _Letter:
    outgoing: Outgoing
    future: Future[Receipt]
    deadline: float
    is_alone: bool = False
    """It was in a transaction that was refused: alone, it can be seen whether it is to blame."""


class GroupCommitOutbox:
    """Keeps messages up to a bound, and sends them in transactions, in order."""

    spilled = 0

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Outbox]],
        bounds: _Bounds,
        patience_s: float,
        on_away: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._transaction = transaction
        self._bounds = bounds
        self._patience_s = patience_s
        self._on_away = on_away
        self._on_close = on_close
        self._changed = threading.Condition()
        self._waiting: deque[_Letter] = deque()
        self._waiting_bytes = 0
        self._under_way = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-group-commit", daemon=True)
        self._thread.start()

    @property
    def buffered(self) -> int:
        return len(self._waiting) + self._under_way

    def has_room_for(self, outgoing: Outgoing) -> bool:
        with self._changed:
            return self._has_room(size_of(outgoing))

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        letter = _Letter(outgoing, promise(), time.monotonic() + self._patience_s)
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._has_room(size_of(outgoing)) or self._is_closed, room_s)
            if self._is_closed:
                raise ClosedError("the client was closed")
            if has_room:
                self._waiting.append(letter)
                self._waiting_bytes += size_of(outgoing)
                self._changed.notify_all()
        if not has_room:
            others = f"{self.buffered} others wait for the cluster"
            self._fail(
                letter, BufferFullError(f"a message to {outgoing.topic} was not taken: {others}", is_retriable=True)
            )
        return letter.future

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
        for letter in left:
            self._fail(letter, SendError(f"a message to {letter.outgoing.topic} was given up", is_retriable=True))
        self._thread.join()
        if self._on_close is not None:
            self._on_close()

    def _has_room(self, size: int) -> bool:
        if not self._waiting:
            return True
        is_few = len(self._waiting) < self._bounds.messages
        return is_few and self._waiting_bytes + size <= self._bounds.bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                letters = [self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting)))]
                if not letters:
                    return
                self._waiting_bytes -= sum(size_of(letter.outgoing) for letter in letters)
                self._under_way = len(letters)
                self._changed.notify_all()
            while letters:
                together = (
                    1 if letters[0].is_alone else sum(1 for _ in takewhile(lambda each: not each.is_alone, letters))
                )
                letters = [*self._left_after(letters[:together]), *letters[together:]]
                with self._changed:
                    self._under_way = len(letters)
                    self._changed.notify_all()

    def _left_after(self, letters: list[_Letter]) -> list[_Letter]:
        """Sends them in one transaction; gives those that are to be tried again."""
        futures: list[Future[Receipt]] = []
        try:
            with self._transaction() as transaction:
                futures = [transaction.send_soon(letter.outgoing) for letter in letters]
        except (TransactionError, InvalidInputError) as error:
            return self._sorted_out(letters, futures, error)
        for letter, future in zip(letters, futures, strict=True):
            settle(letter.future, future.result())
        return []

    def _sorted_out(
        self, letters: list[_Letter], futures: list[Future[Receipt]], failure: TransactionError | InvalidInputError
    ) -> list[_Letter]:
        """Of a transaction that failed: who is to blame, who is out of time, and who is tried again."""
        wait(futures)
        errors = [future.exception() for future in futures] or [None] * len(letters)
        is_over = isinstance(failure, InvalidInputError) or failure.is_unknown or self._is_closed
        again: list[_Letter] = []
        for letter, error in zip(letters, errors, strict=True):
            if isinstance(error, SendError) and not error.is_retriable and len(letters) == 1:
                self._fail(letter, error)
            elif is_over or time.monotonic() > letter.deadline:
                self._fail(letter, SendError(f"a message was not sent: {failure}", is_retriable=True))
            else:
                # A batch is refused as a whole: one of several is perhaps refused for another's sake.
                letter.is_alone = isinstance(error, SendError) and not error.is_retriable
                again.append(letter)
        if again and not any(letter.is_alone for letter in again):
            time.sleep(_AGAIN_S)
        return again

    def _fail(self, letter: _Letter, error: SendError) -> None:
        if self._on_away is not None and error.is_retriable:
            self._on_away()
        settle(letter.future, error)
