"""Reading a segment file batch by batch, trusting nothing: for recovery, cold reads, compaction and dumps.

A window of the file is held in memory, so a scan costs the same whatever the size of the file, and a length that lies
costs time but no memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, read_header
from penstock.storage.files import File

WINDOW_BYTES = 1 << 20
NO_BOUND = 1 << 62


class FoundBatch(NamedTuple):
    position: int
    header: BatchHeader
    batch: memoryview
    """Valid until the scan goes on."""

    @property
    def end(self) -> int:
        return self.position + len(self.batch)


class Damage(NamedTuple):
    """Bytes that no sound batch covers, and the offsets that cannot be read because of them."""

    start: int
    end: int
    first_offset: int
    resumes_at: int | None
    """The next offset that can be read; None where the file ends without another sound batch."""


class Window:
    """A stretch of a file in memory, moved forward as it is read."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = memoryview(b"")

    def view(self, position: int, size: int) -> memoryview:
        """`size` bytes at `position`, fewer at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self._data):
            wanted = min(max(size, WINDOW_BYTES), self._end - position)
            self._data = memoryview(self._file.read(position, wanted) if wanted > 0 else b"")
            self._start, offset = position, 0
        return self._data[offset : offset + size]

    def crc(self, position: int, size: int) -> int:
        """The CRC-32C of a range, read piece by piece."""
        value, end = 0, position + size
        while position < end:
            piece = self.view(position, min(WINDOW_BYTES, end - position))
            if not piece:
                break
            value = crc32c(piece, value)
            position += len(piece)
        return value


def check(window: Window, position: int, end: int, above_offset: int, below_offset: int) -> FoundBatch | None:
    """The batch at `position` if there is a whole, sound one whose offsets lie between the two."""
    header = _plausible(window, position, end)
    if (
        header is None
        or header.magic != MAGIC
        or header.last_offset_delta < 0
        or not above_offset < header.base_offset <= header.last_offset < below_offset
    ):
        return None
    size = header.size
    if size > WINDOW_BYTES and window.crc(position + CRC_START, size - CRC_START) != header.crc:
        return None
    batch = window.view(position, size)
    if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:
        return None
    return FoundBatch(position, header, batch)


def survey(
    file: File, start: int, end: int, above_offset: int = -1, below_offset: int = NO_BOUND
) -> Iterator[FoundBatch | Damage]:
    """Everything from `start` to `end`: each sound batch, and between them what is damaged.

    The CRC does not cover the base offset. One that does not follow on the batch before it, and that the batch behind
    it contradicts, is damage too.
    """
    window = Window(file, end)
    position = start
    while position < end:
        found = (
            check(window, position, end, above_offset, below_offset)
            or _follow_lengths(window, position, end, above_offset, below_offset)
            or find_next(file, position + 1, end, above_offset, below_offset)
        )
        while found is not None and found.header.base_offset != above_offset + 1:
            following = check(window, found.end, end, above_offset, below_offset)
            if following is None or following.header.base_offset > found.header.last_offset:
                break
            found = following
        if found is None:
            yield Damage(position, end, above_offset + 1, None)
            return
        if found.position > position:
            yield Damage(position, found.position, above_offset + 1, found.header.base_offset)
        yield found
        position = found.end
        above_offset = found.header.last_offset


def find_next(file: File, start: int, end: int, above_offset: int, below_offset: int = NO_BOUND) -> FoundBatch | None:
    """The next sound batch anywhere behind `start`, where the chain of batches is broken.

    The first four bytes of the base offset hardly change inside a segment and the magic byte never does: those are
    searched for, overlapping, before any CRC is computed.
    """
    prefixes = {(above_offset + ahead).to_bytes(8, "big")[:4] for ahead in (1, 1 << 31)}
    pattern = re.compile(
        b"(?=(?:" + b"|".join(map(re.escape, sorted(prefixes))) + b").{12}" + bytes([MAGIC]) + b")", re.DOTALL
    )
    candidates, window = Window(file, end), Window(file, end)
    for position in range(start, end, WINDOW_BYTES):
        # Windows overlap by a header, so that one that straddles two of them is seen.
        chunk = candidates.view(position, min(WINDOW_BYTES + HEADER_BYTES, end - position))
        for match in pattern.finditer(chunk):
            found = check(window, position + match.start(), end, above_offset, below_offset)
            if found is not None:
                return found
    return None


def _plausible(window: Window, position: int, end: int) -> BatchHeader | None:
    """The header at `position` if its length stays inside the file."""
    if end - position < HEADER_BYTES:
        return None
    head = window.view(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = read_header(head)
    size = header.length + LENGTH_OVERHEAD
    return header if HEADER_BYTES <= size <= end - position else None


def _follow_lengths(window: Window, position: int, end: int, above_offset: int, below_offset: int) -> FoundBatch | None:
    """The next sound batch by way of the lengths of damaged ones.

    Most damage is not in a length, and then this finds what a search could miss: a search might stop at a batch that
    a producer sent as the value of a record.
    """
    while (header := _plausible(window, position, end)) is not None:
        position += header.size
        if (found := check(window, position, end, above_offset, below_offset)) is not None:
            return found
    return None
