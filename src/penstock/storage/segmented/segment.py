"""One segment: a `.log` file with its indexes, and what is known about its bytes.

Rules:
- The log appends to the last segment only; all others are read-only until they are deleted or replaced as a whole.
- The file and the indexes of a segment that nobody used for a while are let go (`OpenSegments`) and come back when
  needed.
- `checked` says which bytes have had their CRC checked since they last came from the disk; only those are sent to
  clients.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path

from penstock.logs import fields
from penstock.records.batch import BatchHeader
from penstock.storage.segmented.files import File, Files
from penstock.storage.segmented.index import SparseIndex
from penstock.storage.segmented.ranges import Ranges
from penstock.storage.segmented.scan import batches

logger = logging.getLogger(__name__)

LOG, INDEX, TIME_INDEX, PRODUCERS = ".log", ".index", ".timeindex", ".producers"
SUFFIXES = (LOG, INDEX, TIME_INDEX, PRODUCERS)
NO_TIMESTAMP = -1


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class OpenSegments:
    """The segments whose file is open, least recently used first, so that the number of open files has a bound."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def used(self, segment: Segment) -> None:
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > self._limit:
            for oldest in self._open:
                if oldest is not segment and oldest.release():
                    del self._open[oldest]
                    return

    def forget(self, segment: Segment) -> None:
        self._open.pop(segment, None)


class Segment:
    """What a log knows of one of its segments."""

    __slots__ = (
        "_file",
        "_index",
        "_last_indexed",
        "_open_segments",
        "appended_from",
        "base_offset",
        "checked",
        "first_timestamp",
        "folder",
        "index_saved",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "synced_size",
        "written_back",
    )

    def __init__(self, folder: Path, base_offset: int, open_segments: OpenSegments) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.synced_size = 0
        """Bytes that would survive a power loss."""
        self.written_back = 0
        """Bytes that were handed to the disk."""
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """Base offset of the batch that brought the largest timestamp."""
        self.appended_from = 0
        """Bytes from here on were appended by this process, which checked them as they came."""
        self.checked = Ranges()
        self.index_saved = False
        self._index: SparseIndex | None = None
        self._last_indexed = 0
        self._file: File | None = None
        self._open_segments = open_segments

    @classmethod
    def create(cls, folder: Path, base_offset: int, open_segments: OpenSegments) -> Segment:
        segment = cls(folder, base_offset, open_segments)
        segment._index = SparseIndex()
        segment._file = open_segments.files.create(segment.path())
        open_segments.used(segment)
        return segment

    def path(self, suffix: str = LOG) -> Path:
        return self.folder / (segment_name(self.base_offset) + suffix)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._open_segments.files.open(self.path())
            self._open_segments.used(self)
        return self._file

    @property
    def index(self) -> SparseIndex:
        if self._index is None:
            self._index = self._load_index()
            self._open_segments.used(self)
        return self._index

    def append(self, batch: memoryview, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Writes a batch that is stamped already; on an error nothing has changed but, perhaps, bytes behind the end."""
        position = self.size
        (self._file or self.file).write(position, batch)
        self.size = position + len(batch)
        self.note(header, base_offset, position, interval_bytes)

    def note(self, header: BatchHeader, base_offset: int, position: int, interval_bytes: int) -> None:
        """Takes a batch at `position` into indexes and bounds; for appends and for recovery."""
        self.next_offset = base_offset + header.last_offset_delta + 1
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset
        if self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = header.max_timestamp
        if position - self._last_indexed >= interval_bytes:
            self._last_indexed = position
            index = self.index
            index.add(base_offset - self.base_offset, position)
            index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def forget_content(self) -> None:
        """Starts over before the file is scanned from its beginning."""
        self.next_offset = self.base_offset
        self.size = self.synced_size = self.written_back = self.appended_from = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.checked = Ranges()
        self._index = SparseIndex()
        self._last_indexed = 0
        self.index_saved = False

    def save_index(self) -> None:
        """Writes the index files; they are hints, so they need no sync of their own."""
        index = self.index
        if self.max_timestamp != NO_TIMESTAMP:
            index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        positions, times = index.to_bytes()
        for suffix, content in ((INDEX, positions), (TIME_INDEX, times)):
            self._open_segments.files.create(self.path(suffix)).write(0, content)
        self.index_saved = True

    def is_checked(self, start: int, end: int) -> bool:
        """Whether these bytes had their CRC checked and need not be looked at again while they stay in memory."""
        return start >= self.appended_from or self.checked.covers(start, min(end, self.appended_from))

    def release(self) -> bool:
        """Lets the file and the indexes go; False if they are still needed."""
        if not self.index_saved or self.synced_size < self.size:
            return False
        self._file = None
        self._index = None
        return True

    def retire(self) -> None:
        """The segment left its log; whoever is still reading keeps its file and indexes."""
        self._open_segments.forget(self)

    def close(self) -> None:
        """Lets everything go."""
        self.retire()
        self._file = None
        self._index = None

    def _load_index(self) -> SparseIndex:
        files = self._open_segments.files
        positions, times = files.read(self.path(INDEX)), files.read(self.path(TIME_INDEX))
        reason = "missing"
        if positions is not None and times is not None:
            try:
                index = SparseIndex.from_bytes(positions, times)
                if not index.positions or index.positions[-1] < self.size:
                    return index
                reason = "does not fit its segment"
            except ValueError as error:
                reason = str(error)
        logger.warning("index made anew", extra=fields(segment=str(self.path()), reason=reason))
        return self._rebuild_index()

    def _rebuild_index(self) -> SparseIndex:
        index, last = SparseIndex(), 0
        max_timestamp, max_offset = NO_TIMESTAMP, 0
        for position, header, _ in batches(self.file, 0, self.size):
            if header.max_timestamp > max_timestamp:
                max_timestamp, max_offset = header.max_timestamp, header.base_offset - self.base_offset
            if position - last >= 4096:
                last = position
                index.add(header.base_offset - self.base_offset, position)
                index.add_time(max_timestamp, max_offset)
        return index
