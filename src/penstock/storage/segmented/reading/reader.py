"""Reading from segments: from the page cache at once, from the disk in a thread, and never a byte whose CRC was not
checked.

Every look first tries what is in memory (`RWF_NOWAIT`). Where that fails, the same look runs in a thread, which also
brings the pages in and checks their CRCs; the bytes then go out by sendfile like all others.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ApiError, Code, StorageError
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from penstock.storage.contract import NOTHING, Piece, Slice, TimedOffset
from penstock.storage.files import FileSlice
from penstock.storage.segmented.recovery.scan import Damage, FoundBatch, survey
from penstock.storage.segmented.segment import Segment
from penstock.storage.time_lookup import first_at, max_of

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog

SMALL_BYTES = 8192
"""Up to this size the bytes are read and sent with the answer; above, the kernel sends them from the file."""

HOT_TAIL_BYTES = 16 << 20
"""What was appended last is taken to be in the page cache without asking."""

_WALK_BYTES = 16384

_EXAMINED = -2
"""In the place of a hint: the whole segment was looked at, a second look will show nothing else."""

Read = Callable[[int, int], bytes]


class _NotInMemoryError(Exception):
    """The look has to be repeated in a thread."""


class _Range(NamedTuple):
    """Positions, and an offset that is above all between them."""

    start: int
    end: int
    bound: int


class Reader:
    """Reads on behalf of one log."""

    def __init__(self, name: str, pool: Executor) -> None:
        self._name = name
        self._pool = pool

    async def read(self, segment: Segment, offset: int, max_bytes: int, end_offset: int, hint: int) -> Slice:
        """Batches of one segment from the one that holds `offset` on; `hint` is its position, if known, or -1."""
        if segment.damage and segment.lost_at(offset) is not None:
            raise self._corrupt(segment, offset)
        try:
            found = _find_range(segment, offset, max_bytes, end_offset, hint, _cached(segment))
        except _NotInMemoryError:
            # Looking for the place brings pages in, which must not count as checked because they once were.
            segment.forget_checks()
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(
                self._pool, _find_range, segment, offset, max_bytes, end_offset, hint, _uncached(segment)
            )
        if found is None:
            return NOTHING
        start, end, bound = found
        file = segment.file
        if segment.is_checked(start, end):
            if start >= segment.hot_from and start >= segment.size - HOT_TAIL_BYTES:
                if end - start <= SMALL_BYTES:
                    return Slice((file.read(start, end - start),), end - start, bound, position=start)
                return Slice((FileSlice(file, start, end - start),), end - start, bound)
            if file.is_cached(start, end - start):
                return Slice((FileSlice(file, start, end - start),), end - start, bound)
            segment.forget_checks()
        loop = asyncio.get_running_loop()
        checked = await loop.run_in_executor(self._pool, _check_range, segment, start, end, offset)
        if checked == start:
            # Damage, or an index that led to the wrong place: after a look at all of the segment it is known which.
            if hint == _EXAMINED:
                raise self._corrupt(segment, offset)
            segment.take(await loop.run_in_executor(self._pool, segment.survey))
            return await self.read(segment, offset, max_bytes, end_offset, _EXAMINED)
        segment.checked.add(start, checked)
        return Slice((FileSlice(file, start, checked - start),), checked - start, bound)

    async def pieces(self, segments: Sequence[Segment], wanted: Sequence[Piece]) -> list[bytes]:
        """Parts of batches, unchecked, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _pieces, list(segments), wanted)

    def _corrupt(self, segment: Segment, offset: int) -> ApiError:
        return ApiError(
            Code.CORRUPT_MESSAGE,
            f"{self._name}: offset {offset} cannot be read, {segment.path().name} is damaged there;"
            " what lies behind can be read by seeking past it",
        )

    async def find_time(self, segments: Sequence[Segment], timestamp_ms: int, start_offset: int) -> TimedOffset | None:
        """The first record at or behind `start_offset` whose timestamp is not below `timestamp_ms`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, _find_time, list(segments), timestamp_ms, start_offset
        )

    async def find_max_timestamp(self, segments: Sequence[Segment], start_offset: int) -> TimedOffset | None:
        """The first record at or behind `start_offset` that has the largest timestamp of those."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _find_max, list(segments), start_offset)


async def look_up(log: SegmentedLog, look: Callable[[], Awaitable[TimedOffset | None]]) -> TimedOffset | None:
    """What `look` finds in the segments of a log, again if they were replaced meanwhile."""
    if log.failure is not None:
        raise log.failure
    segments = list(log.segments)
    try:
        return await look()
    except OSError as error:
        if segments != log.segments:
            return await look_up(log, look)
        raise StorageError(f"reading {log.topic_partition} failed: {error}") from error


def _pieces(segments: list[Segment], wanted: Sequence[Piece]) -> list[bytes]:
    bases = [segment.base_offset for segment in segments]
    return [
        segments[max(0, bisect_right(bases, base_offset) - 1)].file.read(position, size)
        for base_offset, position, size in wanted
    ]


def _uncached(segment: Segment) -> Read:
    return lambda position, size: segment.file.read(position, size)


def _cached(segment: Segment) -> Read:
    if not segment.is_loaded:
        raise _NotInMemoryError
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
    size = segment.size  # before the offset: see Segment.append
    limit = size if segment.next_offset <= end_offset else _locate(segment, end_offset, read)
    if limit is None:
        limit = size
    if segment.damage:
        limit = min(limit, segment.sound_end(start))
    if limit <= start:
        return None
    if limit - start <= max_bytes:
        return _Range(start, limit, min(end_offset, segment.next_offset))
    cut = segment.index.last_position_up_to(start + max_bytes)
    if cut <= start:
        length = HEADER.unpack(read(start, HEADER_BYTES))[1]
        cut = max(start + HEADER_BYTES, start + length + LENGTH_OVERHEAD)
    cut = min(cut, limit)
    relative = segment.index.offset_from(cut)
    behind = segment.next_offset if relative is None else segment.base_offset + relative
    return _Range(start, cut, min(end_offset, behind))


def _locate(segment: Segment, offset: int, read: Read) -> int | None:
    """The position of the first batch whose last offset is not below `offset`."""
    position, end = segment.index.position_of(max(0, offset - segment.base_offset)), segment.size
    if segment.damage:
        position, end = segment.around_damage(position, offset)
    size = HEADER_BYTES
    while position < end:
        chunk = read(position, min(size, end - position))
        at = 0
        while at + HEADER_BYTES <= len(chunk):
            fields = HEADER.unpack_from(chunk, at)
            if fields[0] + fields[6] >= offset:
                return position + at
            if fields[1] < HEADER_BYTES - LENGTH_OVERHEAD or position + at + fields[1] + LENGTH_OVERHEAD > end:
                return position + at  # no batch: the check of its CRC will show it
            at += fields[1] + LENGTH_OVERHEAD
        if at == 0:
            return position  # fewer bytes than a header
        position += at
        size = _WALK_BYTES
    return end if end < segment.size else None


def _check_range(segment: Segment, start: int, end: int, offset: int) -> int:
    """Reads and checks whole batches; gives the end of the sound ones, of which the first must reach to `offset`."""
    checked, size = start, segment.size
    for found in survey(segment.file, start, size, below_offset=max(segment.next_offset, offset + 1)):
        if isinstance(found, Damage) or found.position >= end or found.header.last_offset < offset:
            break
        checked = found.end
    return checked


def _find_time(segments: list[Segment], timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= start_offset:
            continue
        index = segment.index
        position = index.position_of(index.offset_before_time(timestamp_ms))
        for found in _sound(segment, position):
            if found.header.max_timestamp >= timestamp_ms:
                record = first_at(found.batch, found.header, timestamp_ms, start_offset)
                if record is not None:
                    return record
    return None


def _find_max(segments: list[Segment], start_offset: int) -> TimedOffset | None:
    """A segment's largest timestamp counts as it is known, unless records below the start may have brought it."""
    largest: TimedOffset | None = None
    for segment in segments:
        if segment.next_offset <= start_offset or (largest and segment.max_timestamp <= largest.timestamp_ms):
            continue
        if segment.base_offset >= start_offset:
            found = _find_time([segment], segment.max_timestamp, start_offset)
        else:
            found = None
            for batch in _sound(segment, 0):
                if found is None or batch.header.max_timestamp > found.timestamp_ms:
                    record = max_of(batch.batch, batch.header, start_offset)
                    if record is not None and (found is None or record.timestamp_ms > found.timestamp_ms):
                        found = record
        if found is not None and (largest is None or found.timestamp_ms > largest.timestamp_ms):
            largest = found
    return largest


def _sound(segment: Segment, position: int) -> Iterator[FoundBatch]:
    for found in survey(segment.file, position, segment.size, below_offset=segment.next_offset):
        if not isinstance(found, Damage):
            yield found
