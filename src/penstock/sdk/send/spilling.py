"""The outbox of `Spill`: memory first, then files, in order.

Three states. *Direct*: messages go to librdkafka, as with `Keep`. *Turning*: one of them was given up because the
cluster is away, or the memory is full; everything that is on its way is called back. *Spilling*: what was called back
is in the folder, in the order in which it was sent, new messages go behind it, and from the front they go to the
cluster for as long as it takes. When nothing is left in the folder it is direct again.

    direct --away, memory full--> turning --all called back--> spilling --folder is empty--> direct

One thread does it all, except for appending new messages and for what librdkafka reports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from penstock.logs import fields
from penstock.sdk.counters import Tally
from penstock.sdk.errors import BufferFullError, ClosedError, SendError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.outboxes import promise, settle
from penstock.sdk.send.sender import Sender
from penstock.sdk.send.spill_entries import Entry
from penstock.sdk.send.spill_folder import SpillFolder

log = logging.getLogger(__name__)

_WINDOW = 2_000
"""Entries on their way from the folder at most."""
_WINDOW_BYTES = 32 * 1024 * 1024
"""With so many on their way no more are read."""
_LOOK_S = 0.1
_TROUBLE_S = 1.0
_SETTLE_S = 5.0
"""So long is waited for what is on its way before it is started over: what is answered is not sent twice."""


class _State(Enum):
    DIRECT = auto()
    TURNING = auto()
    SPILLING = auto()


@dataclass(slots=True)
class _Letter:
    """A message that was taken and not answered."""

    outgoing: Outgoing
    future: Future[Receipt]


@dataclass(slots=True)
class _Passing:
    """An entry on its way from the folder to the cluster."""

    entry: Entry
    is_over: bool = False
    """It is with the cluster, or refused."""
    is_alone: bool = False
    """Nothing else is on its way: if it is refused, it is itself to blame."""


class SpillingOutbox:
    """Takes messages until the folder is full; answers once each is with the cluster or in the folder."""

    def __init__(
        self,
        folder: SpillFolder,
        new_sender: Callable[[], Sender],
        new_endless_sender: Callable[[], Sender],
        tally: Tally,
    ) -> None:
        self._folder = folder
        self._new_sender = new_sender
        self._new_endless_sender = new_endless_sender
        self._tally = tally
        self._changed = threading.Condition()
        self._state = _State.SPILLING if folder.waiting else _State.DIRECT
        self._sender = new_endless_sender() if folder.waiting else new_sender()
        self._taken = 0
        self._called_back: dict[int, _Letter] = {}
        """While turning: by the order in which they were taken."""
        self._unsynced: list[_Letter] = []
        self._passing: deque[_Passing] = deque()
        self._over_ahead: set[int] = set()
        """Entries behind the first one left that were over when it was started over."""
        self._must_start_over = False
        self._careful_until = -1
        """Up to this entry each is sent alone: a batch is refused as a whole, and one of these was in such a batch."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-spill", daemon=True)
        self._thread.start()

    @property
    def buffered(self) -> int:
        return 0 if self._state is _State.SPILLING else self._sender.outstanding

    @property
    def spilled(self) -> int:
        return self._folder.waiting

    def has_room_for(self, outgoing: Outgoing) -> bool:
        """Nobody waits: what finds the memory full goes to the folder."""
        return True

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        letter = _Letter(outgoing, promise())
        with self._changed:
            if self._is_closing:
                raise ClosedError("the client was closed")
            number = self._taken
            self._taken += 1
            if self._state is _State.DIRECT:
                try:
                    self._sender.produce(outgoing, lambda result: self._answered(number, letter, result))
                    return letter.future
                except BufferFullError:
                    self._turn()
            if self._state is _State.TURNING:
                self._called_back[number] = letter
            else:
                self._spill(letter)
            self._changed.notify_all()
        return letter.future

    def flush(self, timeout_s: float) -> bool:
        """Waits until nothing is in memory and nothing in the folder."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                state, sender = self._state, self._sender
                if state is not _State.DIRECT:
                    left_s = deadline - time.monotonic()
                    if not self._changed.wait_for(lambda: self._state is _State.DIRECT, max(0.0, left_s)):
                        return False
                    continue
            is_done = sender.flush(max(0.0, deadline - time.monotonic()))
            with self._changed:
                if self._state is _State.DIRECT:
                    return is_done

    def close(self, timeout_s: float) -> None:
        self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            if self._state is _State.DIRECT and self._sender.outstanding:
                self._turn()
            self._changed.notify_all()
        self._thread.join()
        self._sync()
        self._sender.close()
        self._strike_off()
        self._folder.close()

    def _answered(self, number: int, letter: _Letter, result: Receipt | SendError) -> None:
        """librdkafka's word on a message that was sent directly."""
        if isinstance(result, SendError) and result.is_retriable:
            with self._changed:
                self._turn()
                self._called_back[number] = letter
        else:
            settle(letter.future, result)

    def _turn(self) -> None:
        if self._state is _State.DIRECT:
            self._state = _State.TURNING
            self._changed.notify_all()
            log.warning("the cluster is away: messages go to the spill folder")

    def _spill(self, letter: _Letter) -> None:
        try:
            self._folder.append(letter.outgoing)
        except BufferFullError as error:
            settle(letter.future, error)
        else:
            self._unsynced.append(letter)

    def _run(self) -> None:
        while True:
            with self._changed:
                state = self._state
                if state is _State.DIRECT:
                    if self._is_closing:
                        return
                    self._changed.wait()
                    continue
            try:
                if state is _State.TURNING:
                    self._call_back()
                self._sync()
                if self._is_closing:
                    return
                self._pass_on()
            except OSError:
                log.exception("the spill folder cannot be used; it is tried again")
                self._must_start_over = True
                time.sleep(_TROUBLE_S)

    def _call_back(self) -> None:
        # Whatever is on its way is reported as given up before this returns; what has arrived all the same comes twice.
        self._sender.close()
        with self._changed:
            for _, letter in sorted(self._called_back.items()):
                self._spill(letter)
            self._called_back.clear()
            self._sender = self._new_endless_sender()
            self._state = _State.SPILLING

    def _sync(self) -> None:
        """What was appended is durable after this, and answered."""
        with self._changed:
            letters, self._unsynced = self._unsynced, []
            file = self._folder.tail_to_sync() if letters else None
        failure: SendError | None = None
        if file is not None:
            try:
                os.fdatasync(file)
            except OSError as error:
                failure = SendError(f"the spill folder could not be synced: {error.strerror}")
            finally:
                os.close(file)
        for letter in letters:
            settle(letter.future, failure or Receipt(letter.outgoing.topic, None, None, is_spilled=True))

    def _pass_on(self) -> None:
        """From the front of the folder to the cluster, and back to direct sending when nothing is left."""
        if self._must_start_over:
            self._start_over()
        with self._changed:
            self._strike_off()
            if not self._folder.waiting and not self._unsynced:
                self._go_direct()
                return
            added = self._next_entries()
            if not added and not self._unsynced:
                self._changed.wait(_LOOK_S)
        for passing in added:
            if passing.is_over:
                continue
            try:
                self._sender.produce(passing.entry.outgoing, partial(self._passed, passing))
            except BufferFullError:
                self._must_start_over = True
                return

    def _next_entries(self) -> list[_Passing]:
        is_careful = self._folder.cursor <= self._careful_until
        size = sum(len(passing.entry.outgoing.value or b"") for passing in self._passing)
        if size >= _WINDOW_BYTES or (is_careful and self._passing):
            return []
        entries = self._folder.take(1 if is_careful else _WINDOW - len(self._passing))
        added = [_Passing(entry, entry.number in self._over_ahead, is_careful) for entry in entries]
        self._passing.extend(added)
        return added

    def _passed(self, passing: _Passing, result: Receipt | SendError) -> None:
        """librdkafka's word on an entry."""
        with self._changed:
            if isinstance(result, Receipt):
                self._tally.count(sent=1)
                passing.is_over = True
            elif result.is_retriable:
                self._must_start_over = True
            elif not passing.is_alone:
                self._must_start_over = True
                self._careful_until = max(self._careful_until, passing.entry.number)
            else:
                self._refuse(passing.entry, result)
                passing.is_over = True
            self._changed.notify_all()

    def _refuse(self, entry: Entry, error: SendError) -> None:
        self._tally.count(refused=1)
        log.error("a spilled message was refused", extra=fields(reason=str(error), number=entry.number))
        try:
            self._folder.refuse(entry)
        except OSError:
            log.exception("a refused message could not be kept")

    def _strike_off(self) -> None:
        """Notes what is with the cluster."""
        first_left = None
        while self._passing and self._passing[0].is_over:
            first_left = self._passing.popleft().entry.number + 1
        if first_left is not None:
            self._folder.sent(first_left)

    def _start_over(self) -> None:
        """A producer has failed, or a batch was refused: begins with the first entry that is not known to be over."""
        if not self._sender.is_spent:
            self._sender.flush(_SETTLE_S)
        self._sender.close()
        with self._changed:
            self._strike_off()
            self._over_ahead = {passing.entry.number for passing in self._passing if passing.is_over}
            self._passing.clear()
            self._folder.rewind()
            self._sender = self._new_endless_sender()
            self._must_start_over = False

    def _go_direct(self) -> None:
        self._sender.retire()
        self._sender = self._new_sender()
        self._state = _State.DIRECT
        self._changed.notify_all()
        log.info("the spill folder is empty: messages go to the cluster")
