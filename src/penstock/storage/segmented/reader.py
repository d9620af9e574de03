"""Reading from segments: from the page cache at once, from the disk in a thread, and never a byte whose CRC was not
checked.

Every look first tries what is in memory (`RWF_NOWAIT`). Where that fails, the same look runs in a thread, which also
brings the pages in and checks their CRCs; the bytes then go out by sendfile like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.errors import ApiError, Code
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from penstock.records.records import records_block, walk
from penstock.storage.contract import NOTHING, Slice, TimedOffset
from penstock.storage.segmented.files import FileSlice
from penstock.storage.segmented.scan import batches
from penstock.storage.segmented.segment import Segment

SMALL_BYTES = 8192
"""Up to this size the bytes are read and sent with the answer; above, the kernel sends them from the file."""

HOT_TAIL_BYTES = 16 << 20
"""What was appended last is taken to be in the page cache without asking."""

_WALK_BYTES = 16384

Read = Callable[[int, int], bytes]


class _NotInMemoryError(Exception):
    """The look has to be repeated in a thread."""


class _Range(NamedTuple):
    start: int
    end: int


class Reader:
    """Reads on behalf of one log."""

    def __init__(self, name: str, pool: Executor) -> None:
        self._name = name
        self._pool = pool

    async def read(self, segment: Segment, offset: int, max_bytes: int, end_offset: int, hint: int) -> Slice:
        """Batches of one segment from the one that holds `offset` on; `hint` is its position, if known, or -1."""
        try:
            found = _find_range(segment, offset, max_bytes, end_offset, hint, _cached(segment))
        except _NotInMemoryError:
            loop = asyncio.get_running_loop()
            read = segment.file.read
            found = await loop.run_in_executor(
                self._pool, _find_range, segment, offset, max_bytes, end_offset, hint, read
            )
        if found is None:
            return NOTHING
        start, end = found
        file = segment.file
        if segment.is_checked(start, end):
            if start >= segment.appended_from and start >= segment.size - HOT_TAIL_BYTES:
                if end - start <= SMALL_BYTES:
                    return Slice((file.read(start, end - start),), end - start)
                return Slice((FileSlice(file, start, end - start),), end - start)
            if file.is_cached(start, end - start):
                return Slice((FileSlice(file, start, end - start),), end - start)
        checked = await asyncio.get_running_loop().run_in_executor(self._pool, _check_range, segment, start, end)
        if checked == start:
            raise ApiError(
                Code.CORRUPT_MESSAGE,
                f"{self._name}: the batch at offset {offset} (position {start} of {segment.path().name}) is damaged;"
                " what lies behind it can be read by seeking past it",
            )
        segment.checked.add(start, checked)
        return Slice((FileSlice(file, start, checked - start),), checked - start)

    async def find_time(self, segments: Sequence[Segment], timestamp_ms: int, start_offset: int) -> TimedOffset | None:
        """The first record at or behind `start_offset` whose timestamp is not below `timestamp_ms`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, _find_time, list(segments), timestamp_ms, start_offset
        )


def _cached(segment: Segment) -> Read:
    file = segment.file

    def read(position: int, size: int) -> bytes:
        data = file.read_cached(position, size)
        if data is None:
            raise _NotInMemoryError
        return data

    return read


def _find_range(segment: Segment, offset: int, max_bytes: int, end_offset: int, hint: int, read: Read) -> _Range | None:
    start = hint if hint >= 0 else _locate(segment, offset, read)
    if start is None:
        return None
    limit = segment.size if segment.next_offset <= end_offset else _locate(segment, end_offset, read)
    if limit is None:
        limit = segment.size
    if limit <= start:
        return None
    if limit - start <= max_bytes:
        return _Range(start, limit)
    cut = segment.index.last_position_up_to(start + max_bytes)
    if cut <= start:
        length = HEADER.unpack(read(start, HEADER_BYTES))[1]
        cut = min(limit, start + length + LENGTH_OVERHEAD)
    return _Range(start, min(cut, limit))


def _locate(segment: Segment, offset: int, read: Read) -> int | None:
    """The position of the first batch whose last offset is not below `offset`."""
    position = segment.index.position_of(max(0, offset - segment.base_offset))
    size = HEADER_BYTES
    while position < segment.size:
        chunk = read(position, min(size, segment.size - position))
        at = 0
        while at + HEADER_BYTES <= len(chunk):
            fields = HEADER.unpack_from(chunk, at)
            if fields[0] + fields[6] >= offset:
                return position + at
            if fields[1] < HEADER_BYTES - LENGTH_OVERHEAD:
                raise ApiError(Code.CORRUPT_MESSAGE, f"{segment.path().name} is damaged at {position + at}")
            at += fields[1] + LENGTH_OVERHEAD
        if at == 0:
            return None
        position += at
        size = _WALK_BYTES
    return None


def _check_range(segment: Segment, start: int, end: int) -> int:
    """Reads and checks whole batches; gives the end of the sound ones."""
    checked = start
    for found in batches(segment.file, start, end):
        checked = found.position + found.header.size
    return checked


def _find_time(segments: list[Segment], timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= start_offset:
            continue
        first = segment.index.offset_before_time(timestamp_ms)
        position = segment.index.position_of(first)
        for found in batches(segment.file, position, segment.size):
            header = found.header
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset or header.is_control:
                continue
            if header.uses_append_time:
                offset = max(header.base_offset, start_offset)
                return TimedOffset(offset, header.max_timestamp, header.leader_epoch)
            for record in walk(records_block(found.batch, header), header.record_count):
                timestamp = header.base_timestamp + record.timestamp_delta
                offset = header.base_offset + record.offset_delta
                if timestamp >= timestamp_ms and offset >= start_offset:
                    return TimedOffset(offset, timestamp, header.leader_epoch)
    return None
