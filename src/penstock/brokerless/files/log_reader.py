"""Reads the log of a partition that other processes append to. It takes no lock, and serves only sound batches."""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.brokerless.files.batch_scan import behind_damage, header_at, sound_batch_at
from penstock.brokerless.files.segments import base_offsets, segment_path
from penstock.brokerless.record_codec import messages_of
from penstock.brokerless.store import ReadPage
from penstock.errors import ApiError
from penstock.ids import TopicPartition
from penstock.records.batch import BatchHeader
from penstock.sdk.ports import Received

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1024 * 1024
_PAGE_BYTES = 16 * 1024 * 1024
"""A page ends with the batch that passes this size."""
_OPEN_SEGMENTS = 4
_INDEX_BYTES = 128 * 1024
"""How far apart known positions are."""


@dataclass(slots=True)
class _Segment:
    """A segment that is open for reading, and what is known of it."""

    base_offset: int
    fd: int
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Where the batch that begins with the offset at the same place of `offsets` is."""

    def floor(self, offset: int) -> tuple[int, int]:
        """The offset and position of a batch at or before an offset."""
        place = bisect_right(self.offsets, offset) - 1
        return (self.offsets[place], self.positions[place]) if place >= 0 else (self.base_offset, 0)

    def learn(self, offset: int, position: int) -> None:
        if not self.positions or position - self.positions[-1] >= _INDEX_BYTES:
            self.offsets.append(offset)
            self.positions.append(position)


@dataclass(slots=True)
class _Cursor:
    """Where a batch begins, or will begin."""

    base_offset: int
    """Of the segment."""
    offset: int
    position: int


class LogReader:
    """The reading side of a partition. Thread-safe. All methods raise `OSError`."""

    def __init__(self, tp: TopicPartition, folder: Path) -> None:
        self._tp = tp
        self._folder = folder
        self._mutex = threading.Lock()
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        self._bases: list[int] = []
        self._end = _Cursor(0, 0, 0)
        """The last known end."""
        self._resumed: tuple[int, _Cursor] = (-1, self._end)
        """The offset at which the last read ended, and the batch that has it."""
        self._chunk: tuple[int, int, memoryview] = (-1, 0, memoryview(b""))
        """Bytes that were read: base offset of their segment, position, bytes."""
        self._seen_bytes = -1
        """The size of the last segment when nothing more was sound in it."""

    def read(self, offset: int, max_count: int) -> ReadPage:
        """Messages from an offset on, or from the oldest one if that is later."""
        with self._mutex:
            found: list[Received] = []
            size = 0
            cursor = self._cursor_for(offset)
            while len(found) < max_count and size < _PAGE_BYTES:
                batch = self._batch_at(cursor)
                offset = max(offset, cursor.base_offset)
                if batch is None:
                    break
                data, header = batch
                if header.last_offset >= offset:
                    messages = self._messages(data, header, offset)
                    room = max_count - len(found)
                    found += messages[:room]
                    if len(messages) > room:
                        offset = messages[room].offset
                        break
                    offset = header.next_offset
                    size += header.size
                self._pass(cursor, header)
            self._resumed = (offset, cursor)
            return ReadPage(found, offset)

    def bounds(self) -> tuple[int, int]:
        """The oldest offset, and the one behind the newest."""
        with self._mutex:
            self._bases = base_offsets(self._folder)
            if not self._bases:
                return 0, 0
            cursor = replace(self._end)
            if cursor.base_offset not in self._bases:
                cursor = _Cursor(self._bases[-1], self._bases[-1], 0)
            while (batch := self._batch_at(cursor)) is not None:
                self._pass(cursor, batch[1])
            self._end = cursor
            return self._bases[0], cursor.offset

    def may_have(self, offset: int) -> bool:
        """Whether there may be something at an offset; cheap enough to be asked every few milliseconds."""
        with self._mutex:
            resumed, cursor = self._resumed
            if offset != resumed:
                return True
            try:
                size = os.fstat(self._open(cursor.base_offset).fd).st_size
            except FileNotFoundError:
                return bool(base_offsets(self._folder))
            if size > cursor.position and size != self._seen_bytes:
                return True
            return offset != cursor.base_offset and segment_path(self._folder, offset).exists()

    def sync(self) -> None:
        """Make everything that readers may have seen durable."""
        with self._mutex:
            bases = base_offsets(self._folder)
            if bases:
                # Earlier segments are synced before a later one is begun.
                os.fsync(self._open(bases[-1]).fd)

    def close(self) -> None:
        with self._mutex:
            for segment in self._segments.values():
                os.close(segment.fd)
            self._segments.clear()

    def _cursor_for(self, offset: int) -> _Cursor:
        """A batch at or before an offset."""
        resumed, cursor = self._resumed
        if resumed == offset and cursor.base_offset in self._segments:
            return replace(cursor)
        if not self._bases or not self._bases[0] <= offset < self._bases[-1]:
            self._bases = base_offsets(self._folder)
        if not self._bases:
            return _Cursor(0, 0, 0)
        base = self._bases[max(0, bisect_right(self._bases, offset) - 1)]
        if base == self._end.base_offset and offset >= self._end.offset:
            return replace(self._end)
        try:
            return _Cursor(base, *self._open(base).floor(offset))
        except FileNotFoundError:
            return _Cursor(base, base, 0)

    def _batch_at(self, cursor: _Cursor) -> tuple[bytes, BatchHeader] | None:
        """The batch at the cursor, which moves to the next segment, or behind damage, if there is none."""
        while True:
            try:
                segment = self._open(cursor.base_offset)
            except FileNotFoundError:
                # Retention has removed it, or the partition has no messages yet.
                self._bases = base_offsets(self._folder)
                following = next((each for each in self._bases if each > cursor.base_offset), None)
            else:
                if (found := self._sound_batch(segment, cursor)) is not None:
                    return found
                following = self._following(cursor)
            if following is None:
                return None
            cursor.base_offset, cursor.offset, cursor.position = following, following, 0

    def _pass(self, cursor: _Cursor, header: BatchHeader) -> None:
        cursor.offset, cursor.position = header.next_offset, cursor.position + header.size
        self._segments[cursor.base_offset].learn(cursor.offset, cursor.position)

    def _following(self, cursor: _Cursor) -> int | None:
        """The segment behind the one that ends here. The list of segments is older than the read that found the end, so
        a segment that has a successor in it was complete.
        """
        later = next((each for each in self._bases if each > cursor.base_offset), None)
        is_last = later is None and cursor.offset != cursor.base_offset
        if is_last and segment_path(self._folder, cursor.offset).exists():
            self._bases.append(cursor.offset)
            return cursor.offset
        return later

    def _open(self, base: int) -> _Segment:
        segment = self._segments.get(base)
        if segment is None:
            fd = os.open(segment_path(self._folder, base), os.O_RDONLY | os.O_CLOEXEC)
            segment = self._segments[base] = _Segment(base, fd)
            if len(self._segments) > _OPEN_SEGMENTS:
                os.close(self._segments.popitem(last=False)[1].fd)
        else:
            self._segments.move_to_end(base)
        return segment

    def _sound_batch(self, segment: _Segment, cursor: _Cursor) -> tuple[bytes, BatchHeader] | None:
        base, start, data = self._chunk
        if base == segment.base_offset and start <= cursor.position < start + len(data):
            # Bytes of a sound batch do not change any more; others are read again.
            found = _cut_out(data, cursor.position - start, cursor.offset)
            if found is not None:
                return found
        data = self._read(segment, cursor.position, _CHUNK_BYTES)
        if (found := _cut_out(data, 0, cursor.offset)) is not None:
            return found
        claimed = header_at(data, 0)
        size = os.fstat(segment.fd).st_size
        if claimed is not None and cursor.position + claimed.size <= size:
            # Larger than a chunk; otherwise damaged, or written at this moment. A batch behind it tells.
            data = self._read(segment, cursor.position, size - cursor.position)
            if (found := _cut_out(data, 0, cursor.offset)) is not None:
                return found
            if (behind := behind_damage(data, 0, cursor.offset)) is not None:
                log.error(
                    "%s: the batch at position %d (offset %d) is damaged; its messages are lost",
                    segment_path(self._folder, segment.base_offset),
                    cursor.position,
                    cursor.offset,
                )
                cursor.position, cursor.offset = cursor.position + behind[0], behind[1]
                return _cut_out(data, behind[0], behind[1])
        self._seen_bytes = size
        return None

    def _read(self, segment: _Segment, position: int, size: int) -> memoryview:
        data = memoryview(os.pread(segment.fd, size, position))
        self._chunk = (segment.base_offset, position, data if len(data) <= _CHUNK_BYTES else memoryview(b""))
        return data

    def _messages(self, data: bytes, header: BatchHeader, offset: int) -> list[Received]:
        try:
            return list(messages_of(data, header, self._tp, offset))
        except ApiError as error:
            log.error("%s: the batch at offset %d cannot be read: %s", self._folder, header.base_offset, error)
            return []


def _cut_out(data: memoryview, position: int, offset: int) -> tuple[bytes, BatchHeader] | None:
    header = sound_batch_at(data, position, offset)
    return None if header is None else (bytes(data[position : position + header.size]), header)
