"""Segments of a log in a table: stretches of offsets, with what retention and look-ups by time need to know of each.

They are rows of `queue_segment` and nothing else: the records of all of them are in the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.config.topic import TopicConfig
from penstock.records.batch import BatchHeader

MAX_SEGMENT_BYTES = 16 << 20
"""Looking for a time reads a segment row by row, so they are not as large as `segment.bytes` allows for files."""
SAVED_EVERY_BYTES = 256 << 10
"""So much may be added to a log before its segment is stored again. What no stored segment covers is found out from the
records when the log is opened.
"""

SegmentRow = tuple[int, int, int, int, int]
"""base_offset, next_offset, bytes, first_time, max_time"""


class Segment:
    """One stretch."""

    __slots__ = ("base_offset", "first_ms", "max_ms", "next_offset", "saved_size", "size")

    def __init__(self, base_offset: int, next_offset: int, size: int, first_ms: int, max_ms: int) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.size = size
        """The bytes of its batches as they were sent."""
        self.saved_size = size
        self.first_ms = first_ms
        self.max_ms = max_ms
        """No record in it is newer. A batch without timestamps is as old as its append."""

    def row(self) -> SegmentRow:
        return self.base_offset, self.next_offset, self.size, self.first_ms, self.max_ms


class Segments:
    """All segments of a log, ascending; batches go to the last one."""

    def __init__(self, rows: Iterable[SegmentRow] = ()) -> None:
        self._segments = [Segment(*row) for row in rows]
        self._changed: dict[int, Segment] = {}

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def add(self, header: BatchHeader, size: int, append_ms: int, config: TopicConfig) -> None:
        """Takes a batch into account that was added to the end of the log."""
        time_ms = header.max_timestamp if header.max_timestamp >= 0 else append_ms
        last = self._segments[-1] if self._segments else None
        if last is None or _must_roll(last, time_ms, size, config):
            last = Segment(header.base_offset, header.next_offset, 0, time_ms, time_ms)
            last.saved_size = -SAVED_EVERY_BYTES
            self._segments.append(last)
        last.next_offset = header.next_offset
        last.size += size
        last.max_ms = max(last.max_ms, time_ms)
        self._changed[last.base_offset] = last

    def adopt(self, base_offset: int, next_offset: int, size: int, time_ms: int) -> None:
        """Takes rows into account that another client added to the end of the log."""
        segment = Segment(base_offset, next_offset, size, time_ms, time_ms)
        self._segments.append(segment)
        self._changed[base_offset] = segment

    def take_due(self) -> list[SegmentRow]:
        """Those that are to be stored with the next batches: if one is new, or has grown by much, all that changed."""
        last = self._segments[-1]
        return self.take_changed() if last.size - last.saved_size >= SAVED_EVERY_BYTES else []

    def take_changed(self) -> list[SegmentRow]:
        """Those that changed since they were taken last."""
        changed, self._changed = list(self._changed.values()), {}
        for segment in changed:
            segment.saved_size = segment.size
        return [segment.row() for segment in changed]

    def copy(self) -> Segments:
        made = Segments(segment.row() for segment in self._segments)
        made._changed = {each.base_offset: each for each in made if each.base_offset in self._changed}
        return made

    def trim(self, start_offset: int) -> None:
        """Forgets those that lie below the start."""
        self._segments = [segment for segment in self._segments if segment.next_offset > start_offset]
        self._changed = {base: each for base, each in self._changed.items() if each.next_offset > start_offset}

    def cut(self, end_offset: int, size: int) -> None:
        """Batches of so many bytes, those at or behind `end_offset`, are gone."""
        while self._segments and self._segments[-1].base_offset >= end_offset:
            gone = self._segments.pop()
            self._changed.pop(gone.base_offset, None)
            size -= gone.size
        if self._segments and self._segments[-1].next_offset > end_offset:
            last = self._segments[-1]
            last.next_offset = end_offset
            last.size = max(0, last.size - max(0, size))
            self._changed[last.base_offset] = last

    def shrink(self, segment: Segment, size: int) -> None:
        """Some records of a segment are gone."""
        segment.size = size
        self._changed[segment.base_offset] = segment


def _must_roll(segment: Segment, time_ms: int, size: int, config: TopicConfig) -> bool:
    return (
        segment.size + size > min(config.segment_bytes, MAX_SEGMENT_BYTES)
        or time_ms - segment.first_ms > config.segment_ms
    )
