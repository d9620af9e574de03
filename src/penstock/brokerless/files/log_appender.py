"""Appends to the log of a partition, one process at a time.

Everything but `locked` and `close` needs the lock. The process that has it has checked the log to its end, so
`end_offset` is right until the lock is given back. `docs/internals/brokerless.md` says what each crash leaves behind.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.brokerless.files.batch_scan import behind_damage, header_at, sound_batch_at
from penstock.brokerless.files.segments import base_offsets, segment_path, sync_folder
from penstock.brokerless.store import Sequenced, StoreAwayError
from penstock.clock import Clock
from penstock.records.batch import MAX_SEQUENCE, BatchHeader

log = logging.getLogger(__name__)

LOCK_TIMEOUT_MS = 5_000
"""How long an appender waits for its turn."""
KEPT_PRODUCERS = 1_000
"""How many producers of a partition are remembered."""
KEPT_BATCHES = 5
"""How many batches of each."""

_FIRST_LOOK_S = 0.0002
_LAST_LOOK_S = 0.01
_CHUNK_BYTES = 4 * 1024 * 1024
_DECIDED = b"\x01"
_CLEAR = b"\x00"


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """A batch that a producer has appended."""

    first: int
    """The sequence of its first message."""
    count: int
    base_offset: int


class LogAppender:
    """The appending side of a partition. Thread-safe: threads take turns, and then processes do."""

    def __init__(self, folder: Path, segment_bytes: int, clock: Clock, *, is_synced: bool) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._clock = clock
        self._is_synced = is_synced
        self._mutex = threading.Lock()
        self._lock_file: int | None = None
        self._segment: int | None = None
        """The last segment, open."""
        self._base_offset = 0
        self._position = 0
        """Where the sound part of the last segment ends."""
        self.end_offset = 0
        self._has_failed = False
        """A sync has failed: what it did not write may be gone, so nothing is acknowledged any more."""
        self.may_have_decided = True
        """Whether decided appends may wait to be completed; a process that has just started does not know."""
        self._producers: OrderedDict[int, deque[AppendedBatch]] = OrderedDict()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Have the partition for oneself, caught up and with a sound end. Raises `StoreAwayError`."""
        until_ms = self._clock.monotonic_ms() + LOCK_TIMEOUT_MS
        if not self._mutex.acquire(timeout=LOCK_TIMEOUT_MS / 1000):
            raise self._too_late()
        try:
            if self._has_failed:
                raise StoreAwayError(f"{self.folder}: a sync has failed; check the disk, then start the process again")
            try:
                lock_file = self._open_lock_file()
                self._take(lock_file, until_ms)
            except OSError as error:
                raise StoreAwayError(f"could not lock {self.folder}: {error.strerror}") from None
            try:
                self._catch_up()
                if os.pread(lock_file, 1, 0) == _DECIDED:
                    self.may_have_decided = True
                yield
            except OSError as error:
                raise StoreAwayError(f"could not append to {self.folder}: {error.strerror}") from None
            finally:
                fcntl.flock(lock_file, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    def repeated(self, sequence: Sequenced, count: int) -> Sequence[int] | None:
        """The offsets of a batch that was appended already."""
        for batch in self._producers.get(sequence.producer_id, ()):
            if batch.first == sequence.first & MAX_SEQUENCE and batch.count == count:
                return range(batch.base_offset, batch.base_offset + count)
        return None

    def write(self, batch: bytes | bytearray) -> None:
        """Append a batch whose base offset is `end_offset`; nothing if it fails, unless the sync does."""
        self._roll_if_full()
        assert self._segment is not None
        header = header_at(memoryview(batch), 0)
        assert header is not None and header.base_offset == self.end_offset
        try:
            _write_all(self._segment, batch, self._position)
        except OSError:
            os.ftruncate(self._segment, self._position)
            raise
        self._passed(header)
        self.sync()

    def sync(self) -> None:
        """Make everything up to the end durable, if the folder is synced at all. Raises `StoreAwayError`."""
        if not self._is_synced:
            return
        assert self._segment is not None
        try:
            os.fsync(self._segment)
        except OSError as error:
            self._has_failed = True
            raise StoreAwayError(f"could not sync {self.folder}: {error.strerror}", is_outcome_unknown=True) from None

    def mark_decided(self) -> None:
        """Appends are about to be decided: the next process that has the lock must look for them."""
        assert self._lock_file is not None
        self.may_have_decided = True
        os.pwrite(self._lock_file, _DECIDED, 0)

    def clear_decided(self) -> None:
        """No decided appends wait."""
        assert self._lock_file is not None
        os.pwrite(self._lock_file, _CLEAR, 0)
        self.may_have_decided = False

    def roll(self) -> None:
        """Begin a new segment, unless the last one is empty."""
        assert self._segment is not None
        if self.end_offset == self._base_offset:
            return
        if self._is_synced:
            os.fsync(self._segment)
        self._open_segment(self.end_offset)

    def close(self) -> None:
        with self._mutex:
            for fd in (self._segment, self._lock_file):
                if fd is not None:
                    os.close(fd)
            self._segment = self._lock_file = None

    def _open_lock_file(self) -> int:
        if self._lock_file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if self._is_synced:
                sync_folder(self.folder.parent)
        return self._lock_file

    def _take(self, lock_file: int, until_ms: float) -> None:
        look_s = _FIRST_LOOK_S
        pause = threading.Event()
        while True:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_ms() >= until_ms:
                    raise self._too_late() from None
                pause.wait(look_s)
                look_s = min(look_s * 2, _LAST_LOOK_S)
            else:
                return

    def _too_late(self) -> StoreAwayError:
        return StoreAwayError(
            f"{self.folder}: another process has been appending for {LOCK_TIMEOUT_MS} ms; nothing was appended"
        )

    def _catch_up(self) -> None:
        """Check what others have appended, and cut a torn tail."""
        if self._segment is None:
            found = base_offsets(self.folder)
            self._open_segment(found[-1] if found else 0)
        while True:
            self._check_segment()
            if segment_path(self.folder, self.end_offset).exists() and self.end_offset != self._base_offset:
                self._open_segment(self.end_offset)
                continue
            if (later := [base for base in base_offsets(self.folder) if base > self._base_offset]) == []:
                self._cut_tail()
                return
            # The segment before ends in damage: its end does not lead to the next one.
            self._open_segment(later[0])

    def _check_segment(self) -> None:
        assert self._segment is not None
        while True:
            size = os.fstat(self._segment).st_size
            if size <= self._position:
                return
            data = memoryview(os.pread(self._segment, min(size - self._position, _CHUNK_BYTES), self._position))
            if self._pass_sound(data):
                continue
            # A batch larger than the chunk, a torn tail, or damage.
            data = memoryview(os.pread(self._segment, size - self._position, self._position))
            if self._pass_sound(data):
                continue
            behind = behind_damage(data, 0, self.end_offset)
            if behind is None:
                return
            log.error(
                "%s: the batch at position %d (offset %d) is damaged; its messages are lost",
                segment_path(self.folder, self._base_offset),
                self._position,
                self.end_offset,
            )
            self._position += behind[0]
            self.end_offset = behind[1]

    def _pass_sound(self, data: memoryview) -> bool:
        position = 0
        while (header := sound_batch_at(data, position, self.end_offset)) is not None:
            self._passed(header)
            position += header.size
        return position > 0

    def _passed(self, header: BatchHeader) -> None:
        self._position += header.size
        self.end_offset = header.next_offset
        if header.producer_id >= 0:
            batches = self._producers.setdefault(header.producer_id, deque(maxlen=KEPT_BATCHES))
            self._producers.move_to_end(header.producer_id)
            batches.append(AppendedBatch(header.base_sequence, header.record_count, header.base_offset))
            if len(self._producers) > KEPT_PRODUCERS:
                self._producers.popitem(last=False)

    def _cut_tail(self) -> None:
        assert self._segment is not None
        size = os.fstat(self._segment).st_size
        if size > self._position:
            os.ftruncate(self._segment, self._position)
            log.warning(
                "%s: cut %d bytes of a batch that was never completed nor acknowledged",
                segment_path(self.folder, self._base_offset),
                size - self._position,
            )

    def _roll_if_full(self) -> None:
        if self._position >= self._segment_bytes:
            self.roll()

    def _open_segment(self, base_offset: int) -> None:
        opened = os.open(segment_path(self.folder, base_offset), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._segment is not None:
            os.close(self._segment)
        self._segment = opened
        self._base_offset = self.end_offset = base_offset
        self._position = 0
        if self._is_synced:
            sync_folder(self.folder)


def _write_all(fd: int, data: bytes | bytearray, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written
