"""The producer of `Spill`: memory first, then files, in order.

*Direct*: messages go to librdkafka, as with `Keep`. *Recalling*: the cluster is unreachable or the memory is full, and
the producer recalls everything in transit. *Spilling*: the recalled messages are in the folder, in the order in which
they were sent; new messages go behind them, and the producer sends from the front until the cluster accepts. When the
folder is empty, sending is direct again.

    direct --unreachable, memory full--> recalling --all recalled--> spilling --folder is empty--> direct

One thread does all of it, except for appending new messages and for librdkafka's reports.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from penstock.sdk.backend import BatchProducer
from penstock.sdk.counters import SendTally
from penstock.sdk.errors import BufferFullError, ClosedError, SendError
from penstock.sdk.ports import Outgoing, Receipt
from penstock.sdk.send.buffered_producer import promise, settle
from penstock.sdk.send.send_outcome import Receipts, send_each
from penstock.sdk.send.spill_entries import SpilledMessage
from penstock.sdk.send.spill_folder import SpillFolder

log = logging.getLogger(__name__)

_WINDOW = 2_000
"""The largest number of entries in transit from the folder."""
_WINDOW_BYTES = 32 * 1024 * 1024
"""Beyond this size in transit, no more entries are read."""
_CHECK_S = 0.1
_RETRY_S = 1.0
_RESTART_FLUSH_S = 5.0
"""How long to wait for entries in transit before a restart, so that acknowledged ones are not sent twice."""


class _SpillState(Enum):
    DIRECT = auto()
    RECALLING = auto()
    SPILLING = auto()


@dataclass(slots=True)
class _PendingSend:
    """A message that was accepted and not answered."""

    outgoing: Outgoing
    future: Future[Receipt]


@dataclass(slots=True)
class _InTransit:
    """An entry in transit from the folder to the cluster."""

    entry: SpilledMessage
    is_done: bool = False
    """The cluster has it, or refused it."""
    is_alone: bool = False
    """Nothing else is in transit: if it is refused, it is the cause."""


class SpillingProducer:
    """Accepts messages until the folder is full; answers once a message is with the cluster or in the folder."""

    def __init__(
        self,
        folder: SpillFolder,
        new_producer: Callable[[], BatchProducer],
        new_endless_producer: Callable[[], BatchProducer],
        tally: SendTally,
    ) -> None:
        self._folder = folder
        self._new_producer = new_producer
        self._new_endless_producer = new_endless_producer
        self._tally = tally
        self._changed = threading.Condition()
        self._state = _SpillState.SPILLING if folder.waiting else _SpillState.DIRECT
        self._producer = new_endless_producer() if folder.waiting else new_producer()
        self._taken = 0
        self._recalled: dict[int, _PendingSend] = {}
        """While recalling: by the order in which they were accepted."""
        self._unsynced: list[_PendingSend] = []
        self._in_transit: deque[_InTransit] = deque()
        self._done_ahead: set[int] = set()
        """Entries behind the first one left that were done at the last restart."""
        self._must_restart = False
        self._one_by_one_until = -1
        """Entries up to this one are sent alone: a broker refuses a batch as a whole, and one of them was in such a
        batch."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-spill", daemon=True)
        self._thread.start()

    @property
    def buffered(self) -> int:
        return 0 if self._state is _SpillState.SPILLING else self._producer.outstanding

    @property
    def spilled(self) -> int:
        return self._folder.waiting

    def has_room_for(self, count: int, size_bytes: int) -> bool:
        """No sender waits: what does not fit into memory goes to the folder."""
        return True

    def send_soon(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        pending = _PendingSend(outgoing, promise())
        with self._changed:
            if self._is_closing:
                raise ClosedError("the client is closed")
            number = self._taken
            self._taken += 1
            if self._state is _SpillState.DIRECT:
                try:
                    self._producer.produce(outgoing, lambda result: self._answered(number, pending, result))
                    return pending.future
                except BufferFullError:
                    self._start_spilling()
            if self._state is _SpillState.RECALLING:
                self._recalled[number] = pending
            else:
                self._spill(pending)
            self._changed.notify_all()
        return pending.future

    def send_many(self, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        return send_each(messages, self.send_soon, room_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left in memory and in the folder."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                state, producer = self._state, self._producer
                if state is not _SpillState.DIRECT:
                    left_s = deadline - time.monotonic()
                    if not self._changed.wait_for(lambda: self._state is _SpillState.DIRECT, max(0.0, left_s)):
                        return False
                    continue
            is_done = producer.flush(max(0.0, deadline - time.monotonic()))
            with self._changed:
                if self._state is _SpillState.DIRECT:
                    return is_done

    def close(self, timeout_s: float) -> None:
        self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            if self._state is _SpillState.DIRECT and self._producer.outstanding:
                self._start_spilling()
            self._changed.notify_all()
        self._thread.join()
        self._sync()
        self._producer.close()
        self._mark_sent()
        self._folder.close()

    def _answered(self, number: int, pending: _PendingSend, result: Receipt | SendError) -> None:
        """librdkafka's report on a message that was sent directly."""
        if isinstance(result, SendError) and result.is_retriable:
            with self._changed:
                self._start_spilling()
                self._recalled[number] = pending
        else:
            settle(pending.future, result)

    def _start_spilling(self) -> None:
        if self._state is _SpillState.DIRECT:
            self._state = _SpillState.RECALLING
            self._changed.notify_all()
            log.warning("no broker accepts messages: writing to spill folder %s", self._folder.path)

    def _spill(self, pending: _PendingSend) -> None:
        try:
            self._folder.append(pending.outgoing)
        except BufferFullError as error:
            settle(pending.future, error)
        else:
            self._unsynced.append(pending)

    def _run(self) -> None:
        while True:
            with self._changed:
                state = self._state
                if state is _SpillState.DIRECT:
                    if self._is_closing:
                        return
                    self._changed.wait()
                    continue
            try:
                if state is _SpillState.RECALLING:
                    self._recall()
                self._sync()
                if self._is_closing:
                    return
                self._send_from_folder()
            except OSError:
                log.exception("could not use spill folder %s; retrying", self._folder.path)
                self._must_restart = True
                time.sleep(_RETRY_S)

    def _recall(self) -> None:
        # Reports everything in transit as given up; what arrived nevertheless is sent twice.
        self._producer.close()
        with self._changed:
            for _, pending in sorted(self._recalled.items()):
                self._spill(pending)
            self._recalled.clear()
            self._producer = self._new_endless_producer()
            self._state = _SpillState.SPILLING

    def _sync(self) -> None:
        """Make everything appended durable, and answer it."""
        with self._changed:
            batch, self._unsynced = self._unsynced, []
            file = self._folder.tail_to_sync() if batch else None
        failure: SendError | None = None
        if file is not None:
            try:
                os.fdatasync(file)
            except OSError as error:
                failure = SendError(f"could not sync the spill folder: {error.strerror}")
            finally:
                os.close(file)
        for pending in batch:
            settle(pending.future, failure or Receipt(pending.outgoing.topic, None, None, is_spilled=True))

    def _send_from_folder(self) -> None:
        """Send from the front of the folder, and return to direct sending when nothing is left."""
        if self._must_restart:
            self._restart()
        with self._changed:
            self._mark_sent()
            if not self._folder.waiting and not self._unsynced:
                self._resume_direct()
                return
            added = self._next_entries()
            if not added and not self._unsynced:
                self._changed.wait(_CHECK_S)
        for in_transit in added:
            if in_transit.is_done:
                continue
            try:
                self._producer.produce(in_transit.entry.outgoing, partial(self._sent, in_transit))
            except BufferFullError:
                self._must_restart = True
                return

    def _next_entries(self) -> list[_InTransit]:
        is_one_by_one = self._folder.cursor <= self._one_by_one_until
        size = sum(len(in_transit.entry.outgoing.value or b"") for in_transit in self._in_transit)
        if size >= _WINDOW_BYTES or (is_one_by_one and self._in_transit):
            return []
        entries = self._folder.take(1 if is_one_by_one else _WINDOW - len(self._in_transit))
        added = [_InTransit(entry, entry.number in self._done_ahead, is_one_by_one) for entry in entries]
        self._in_transit.extend(added)
        return added

    def _sent(self, in_transit: _InTransit, result: Receipt | SendError) -> None:
        """librdkafka's report on an entry."""
        with self._changed:
            if isinstance(result, Receipt):
                self._tally.count(sent=1)
                in_transit.is_done = True
            elif result.is_retriable:
                self._must_restart = True
            elif not in_transit.is_alone:
                self._must_restart = True
                self._one_by_one_until = max(self._one_by_one_until, in_transit.entry.number)
            else:
                self._refuse(in_transit.entry, result)
                in_transit.is_done = True
            self._changed.notify_all()

    def _refuse(self, entry: SpilledMessage, error: SendError) -> None:
        self._tally.count(refused=1)
        log.error(
            "the cluster refused spilled message %d, now kept in refused.spill of %s: %s",
            entry.number,
            self._folder.path,
            error,
        )
        try:
            self._folder.refuse(entry)
        except OSError:
            log.exception("could not keep refused message %d; it is lost", entry.number)

    def _mark_sent(self) -> None:
        """Record what the cluster has."""
        first_left = None
        while self._in_transit and self._in_transit[0].is_done:
            first_left = self._in_transit.popleft().entry.number + 1
        if first_left is not None:
            self._folder.sent(first_left)

    def _restart(self) -> None:
        """After a failed producer or a refused batch: start again with the first entry that is not known to be done."""
        if not self._producer.has_failed:
            self._producer.flush(_RESTART_FLUSH_S)
        self._producer.close()
        with self._changed:
            self._mark_sent()
            self._done_ahead = {in_transit.entry.number for in_transit in self._in_transit if in_transit.is_done}
            self._in_transit.clear()
            self._folder.rewind()
            self._producer = self._new_endless_producer()
            self._must_restart = False

    def _resume_direct(self) -> None:
        self._producer.retire()
        self._producer = self._new_producer()
        self._state = _SpillState.DIRECT
        self._changed.notify_all()
        log.warning("spill folder %s is empty: sending to the brokers again", self._folder.path)
