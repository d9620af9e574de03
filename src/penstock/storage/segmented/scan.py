"""Reading a segment file batch by batch, trusting nothing: for recovery, cold reads, compaction and dumps.

A window of the file is held in memory, so a scan costs the same whatever the size of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, read_header
from penstock.storage.segmented.files import File

WINDOW_BYTES = 1 << 20


class FoundBatch(NamedTuple):
    position: int
    header: BatchHeader
    batch: memoryview
    """Valid until the scan goes on."""


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


def check(window: Window, position: int, end: int, above_offset: int) -> FoundBatch | None:
    """The batch at `position` if there is a whole, sound one whose offsets lie above `above_offset`."""
    if end - position < HEADER_BYTES:
        return None
    head = window.view(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None
    header = read_header(head)
    size = header.length + LENGTH_OVERHEAD
    if (
        header.magic != MAGIC
        or size < HEADER_BYTES
        or size > end - position
        or header.base_offset <= above_offset
        or header.last_offset_delta < 0
    ):
        return None
    batch = window.view(position, size)
    if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:
        return None
    return FoundBatch(position, header, batch)


def batches(file: File, start: int, end: int, above_offset: int = -1) -> Iterator[FoundBatch]:
    """Sound batches one behind the other from `start`; ends at the first place where there is none."""
    window = Window(file, end)
    position = start
    while (found := check(window, position, end, above_offset)) is not None:
        yield found
        position += found.header.size
        above_offset = found.header.last_offset


def find_next(file: File, start: int, end: int, above_offset: int) -> FoundBatch | None:
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
            found = check(window, position + match.start(), end, above_offset)
            if found is not None:
                return found
    return None
