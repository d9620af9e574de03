"""A spill folder: messages that wait on disk for the cluster, in order.

```
lock                        held by the process that has opened the folder; contains its pid, for people
NNNNNNNNNNNNNNNNNNNN.spill  entries (`spill_entries.py`); the name is the number of the first one
sent                        u64 number of the first entry that was not sent, u32 crc-32c of it
refused.spill               entries that the cluster refused for good, for people
```

Entries are only appended. A partial entry at the end of the last file, left by a crash, was never acknowledged and is
cut off. Damage elsewhere hides the rest of its file: the folder keeps a copy with the suffix `.damaged` and logs an
error. `sent` is written after the cluster has acknowledged: a crash may send the last entries twice, and loses none.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from penstock.checksum import crc32c
from penstock.sdk.errors import BufferFullError, SpillError
from penstock.sdk.ports import Outgoing
from penstock.sdk.send.spill_entries import SpilledMessage, encoded, entries_in

log = logging.getLogger(__name__)

SEGMENT_BYTES = 8 * 1024 * 1024
_SENT = struct.Struct(">QI")
_ENDING = ".spill"
_REFUSED = "refused.spill"


@dataclass(slots=True)
class _SpillFile:
    """One file of entries."""

    path: Path
    end: int
    """The number behind its last entry."""
    bytes: int = 0
    read_bytes: int = 0
    """How far it was read."""


class SpillFolder:
    """A folder that this process holds until it is closed. The owner makes sure that one thread at a time uses it."""

    def __init__(self, folder: Path, max_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = folder
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._segments: list[_SpillFile] = []
        self._tail: int | None = None
        """The last file, if this process created it: a recovered file is not appended to."""
        self.cursor = 0
        """The number of the next entry that `take` returns, or one before it."""
        self._unread: list[SpilledMessage] = []
        """Read from disk and not taken yet."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
        except OSError as error:
            raise SpillError(f"could not use spill folder {folder}: {error.strerror}") from None
        try:
            self._mark = os.open(folder / "sent", os.O_RDWR | os.O_CREAT, 0o600)
            self._first = self._next = _marked(os.pread(self._mark, _SENT.size, 0))
            self._recover()
        except OSError as error:
            os.close(self._lock)
            raise SpillError(f"could not use spill folder {folder}: {error.strerror}") from None

    @property
    def waiting(self) -> int:
        """How many entries are not sent."""
        return self._next - self._first

    @property
    def end(self) -> int:
        """The number of the next entry."""
        return self._next

    def append(self, outgoing: Outgoing) -> None:
        """Append a message. It is durable once the file is synced (`tail_to_sync`). Raises `BufferFullError`."""
        raw = encoded(SpilledMessage(self._next, outgoing))
        used = sum(segment.bytes for segment in self._segments)
        if used + len(raw) > self._max_bytes:
            raise BufferFullError(
                f"no room for a message to {outgoing.topic}: the spill folder {self.path} has {used} bytes",
                is_retriable=True,
            )
        try:
            segment = self._tail_segment()
            _append_all(self._tail_file(), raw, segment.bytes)
        except OSError as error:
            raise BufferFullError(
                f"could not write a message to {outgoing.topic} to the spill folder {self.path}: {error.strerror}",
                is_retriable=True,
            ) from None
        segment.bytes += len(raw)
        segment.end = self._next = self._next + 1

    def tail_to_sync(self) -> int | None:
        """A file descriptor for the caller: syncing it makes everything appended so far durable."""
        return None if self._tail is None else os.dup(self._tail)

    def take(self, max_count: int) -> list[SpilledMessage]:
        """The next entries, up to `max_count`."""
        if not self._unread:
            self._unread = self._read_on()
        taken, self._unread = self._unread[:max_count], self._unread[max_count:]
        if taken:
            self.cursor = taken[-1].number + 1
        return taken

    def rewind(self) -> None:
        """Go back to the first entry that was not sent."""
        self.cursor = self._first
        self._unread = []
        for segment in self._segments:
            segment.read_bytes = 0

    def sent(self, first_left: int) -> None:
        """The cluster has everything before this number: do not send it again, and delete its files."""
        if first_left <= self._first:
            return
        self._first = first_left
        os.pwrite(self._mark, _mark_of(first_left), 0)
        while self._segments and self._segments[0].end <= first_left:
            if len(self._segments) == 1 and self._tail is not None:
                os.close(self._tail)
                self._tail = None
            self._segments.pop(0).path.unlink()

    def refuse(self, entry: SpilledMessage) -> None:
        """Keep a message that the cluster refused, apart from the others."""
        with open(self.path / _REFUSED, "ab") as file:
            file.write(encoded(entry))

    def close(self) -> None:
        """Release the folder; its entries stay."""
        for file in (self._tail, self._mark, self._lock):
            if file is not None:
                os.close(file)

    def _recover(self) -> None:
        paths = sorted(path for path in self.path.glob("*" + _ENDING) if path.stem.isdigit())
        if paths and self._first < int(paths[0].stem):
            self._first = int(paths[0].stem)
        for path in paths:
            segment = _recovered(path, is_last=path == paths[-1])
            if segment.end > self._first and segment.bytes:
                self._segments.append(segment)
                self._next = max(self._next, segment.end)
            else:
                path.unlink()
        # After a power loss the mark may be ahead of the files.
        self._next = max(self._next, self._first)
        self.cursor = self._first

    def _read_on(self) -> list[SpilledMessage]:
        for segment in self._segments:
            if segment.read_bytes < segment.bytes:
                with open(segment.path, "rb") as file:
                    file.seek(segment.read_bytes)
                    raw = file.read(segment.bytes - segment.read_bytes)
                segment.read_bytes = segment.bytes
                if found := [entry for entry, _ in entries_in(raw) if entry.number >= self.cursor]:
                    return found
        return []

    def _tail_segment(self) -> _SpillFile:
        if self._tail is None or self._segments[-1].bytes >= self._segment_bytes:
            path = self.path / f"{self._next:020}{_ENDING}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            if self._tail is not None:
                os.fdatasync(self._tail)
                os.close(self._tail)
            self._tail = file
            self._segments.append(_SpillFile(path, self._next))
            _sync_folder(self.path)
        return self._segments[-1]

    def _tail_file(self) -> int:
        assert self._tail is not None
        return self._tail


def _recovered(path: Path, *, is_last: bool) -> _SpillFile:
    """A file that an earlier process left, without what is incomplete."""
    raw = path.read_bytes()
    segment = _SpillFile(path, int(path.stem))
    for entry, end in entries_in(raw):
        segment.end, segment.bytes = entry.number + 1, end
    if segment.bytes < len(raw):
        if not is_last:
            kept = path.with_suffix(".damaged")
            kept.write_bytes(raw)
            log.error("spill file %s is damaged from byte %d on; kept a copy as %s", path, segment.bytes, kept)
        os.truncate(path, segment.bytes)
    return segment


def _locked(folder: Path) -> int:
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 20, 0).decode("ascii", "replace") or "unknown"
        os.close(file)
        raise SpillError(f"spill folder {folder} is in use by another client (process {holder})") from None
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    return file


def _append_all(file: int, raw: bytes, size_before: int) -> None:
    """Write all or nothing: a partial entry would hide those behind it."""
    try:
        view = memoryview(raw)
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.ftruncate(file, size_before)
        raise


def _mark_of(number: int) -> bytes:
    return _SENT.pack(number, crc32c(number.to_bytes(8, "big")))


def _marked(raw: bytes) -> int:
    """The number in the mark; 0 if there is none: then everything in the folder is sent."""
    return int(_SENT.unpack(raw)[0]) if len(raw) == _SENT.size and raw == _mark_of(_SENT.unpack(raw)[0]) else 0


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
