"""One segment: a `.log` file with its indexes, and what is known about its bytes.

Rules:
- The log appends to the last segment only; all others are read-only until they are deleted or replaced as a whole.
- The file and the indexes of a segment that was not used for a while are let go (`OpenSegments`) and come back when
  needed. The indexes of the last segment are nowhere else and stay.
- `checked` says which bytes have had their CRC checked since they last came from the disk; only those are sent to
  clients.
- `damage` says which bytes and offsets are known to be bad; no look-up walks through them.
- Threads use files and indexes too: code that needs one takes it once and keeps it, because it may be let go meanwhile.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.logs import fields
from penstock.records.batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, read_header
from penstock.storage.files import File
from penstock.storage.segmented.disk.open_segments import OpenSegments
from penstock.storage.segmented.index import MAX_RELATIVE, SparseIndex
from penstock.storage.segmented.reading.byte_ranges import Ranges
from penstock.storage.segmented.recovery.scan import Damage, FoundBatch, survey

logger = logging.getLogger(__name__)

LOG, INDEX, TIME_INDEX, ABORTED, PRODUCERS = ".log", ".index", ".timeindex", ".aborted", ".producers"
TAGS = ".tags"
SUFFIXES = (LOG, INDEX, TIME_INDEX, ABORTED, PRODUCERS, TAGS)

_SURVEY_INTERVAL_BYTES = 4096


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Survey(NamedTuple):
    """What reading a whole segment showed."""

    entries: SparseIndex
    damage: tuple[Damage, ...]
    end: int


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
        "damage",
        "entry_synced",
        "first_timestamp",
        "folder",
        "head_size",
        "hot_from",
        "index_saved",
        "is_pinned",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "size",
        "synced_size",
        "was_used",
        "written_back",
    )

    def __init__(self, folder: Path, base_offset: int, open_segments: OpenSegments) -> None:
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.synced_size = 0
        """Bytes that would survive a power loss."""
        self.entry_synced = False
        """Whether the file's name is known to survive a power loss; synced bytes are worth nothing without it."""
        self.written_back = 0
        """Bytes that were handed to the disk."""
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """Base offset of the batch that brought the largest timestamp."""
        self.appended_from = 0
        """Bytes from here on were appended by this process, which checked them as they came."""
        self.hot_from = 0
        """Bytes from here on were appended a moment ago and are taken to be in the page cache without asking."""
        self.checked = Ranges()
        self.damage: tuple[Damage, ...] = ()
        """In ascending order, none open-ended."""
        self.is_pinned = False
        """The file must stay open: its name is about to belong to another segment."""
        self.index_saved = False
        self.head_size = 0
        """How much of a segment that is still appended to its index files cover."""
        self.was_used = False
        """Since `OpenSegments` looked at it last."""
        self._index: SparseIndex | None = None
        self._last_indexed = 0
        self._file: File | None = None
        self._open_segments = open_segments

    @classmethod
    def create(cls, folder: Path, base_offset: int, open_segments: OpenSegments) -> Segment:
        segment = cls(folder, base_offset, open_segments)
        segment.create_file()
        return segment

    def create_file(self) -> None:
        """Makes the file, empty."""
        self._index = SparseIndex()
        self._file = self._open_segments.open(self, create=True)

    def path(self, suffix: str = LOG) -> Path:
        return self.folder / (segment_name(self.base_offset) + suffix)

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            self._file = file = self._open_segments.open(self)
        return file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def index(self) -> SparseIndex:
        index = self._index
        if index is None:
            index = self.load_index()
            if index is None:
                found = self.survey()
                self.take(found)
                index = found.entries
            self._open_segments.opened(self)
        return index

    @property
    def is_loaded(self) -> bool:
        """Whether a look-up needs nothing from the disk but the batches themselves."""
        return self._file is not None and self._index is not None

    def append(self, batch: memoryview, header: BatchHeader, base_offset: int, interval_bytes: int) -> None:
        """Writes a batch that is stamped already; on an error nothing has changed but bytes behind the end."""
        position = self.size
        file = self._file or self.file
        file.write(position, batch)
        self.was_used = True
        # The size comes last: a thread that sees the new size sees the new offset too, and knows whether to stop short.
        self.note(header, base_offset, position, interval_bytes)
        self.size = position + len(batch)
        if self._file is not file:
            # A thread has let it go meanwhile: see release.
            self._file = file
            self._open_segments.opened(self)

    def note(self, header: BatchHeader, base_offset: int, position: int, interval_bytes: int) -> None:
        """Takes a batch at `position` into indexes and bounds; for appends and for recovery."""
        self.next_offset = base_offset + header.last_offset_delta + 1
        if header.max_timestamp > self.max_timestamp and not header.is_control:
            # The time of a marker says nothing about records, and no look-up asks for it.
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = base_offset
        if self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = header.max_timestamp
        if position - self._last_indexed >= interval_bytes:
            self._last_indexed = position
            index = self.index
            index.add(base_offset - self.base_offset, position)
            index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def sync(self) -> None:
        """Returns when the file and its name would survive a power loss."""
        self.file.sync()
        if not self.entry_synced:
            self._open_segments.files.sync_folder(self.folder)
            self.entry_synced = True

    def forget_content(self) -> None:
        """Starts over before the file is scanned from its beginning."""
        self.next_offset = self.base_offset
        self.size = self.synced_size = self.written_back = self.appended_from = self.hot_from = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        self.checked = Ranges()
        self.damage = ()
        self._index = SparseIndex()
        self._last_indexed = 0
        self.index_saved = False
        self.head_size = 0

    def save_index(self) -> None:
        """Writes the index files; they are hints that carry a CRC, so they need no sync of their own."""
        index = self.index
        self._note_last_time(index)
        index.save(self._open_segments.files, self.path(INDEX), self.path(TIME_INDEX), self.size)
        self.index_saved = True

    def head_job(self) -> Callable[[], None]:
        """Writes the index files of what is in the segment now, though it goes on."""
        size = self.head_size = self.size
        index = self.index.head(size, self.next_offset - self.base_offset)
        self._note_last_time(index)
        return lambda: index.save(self._open_segments.files, self.path(INDEX), self.path(TIME_INDEX), size)

    def _note_last_time(self, index: SparseIndex) -> None:
        if self.max_timestamp != NO_TIMESTAMP:
            index.add_time(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def load_index(self) -> SparseIndex | None:
        """The indexes from their files; None, with a line in the log, if they cannot be used."""
        index = self._read_index(self.size, is_growing=False)
        if index is not None:
            self._index = index
            self._last_indexed = index.positions[-1] if index.positions else 0
        return index

    def take_head(self, below_offset: int, size: int) -> int:
        """Takes over from its index files what is known of the beginning of the segment, up to the last known batch
        below an offset; gives that one's position, 0 if nothing is known.
        """
        known = self._read_index(size, is_growing=True)
        if known is None:
            return 0
        relative, position = known.entry_before(below_offset - self.base_offset)
        offset = self.base_offset + relative
        first = next(survey(self.file, position, size, offset - 1), None)
        if (
            position == 0
            or isinstance(first, Damage | None)
            or (first.position, first.header.base_offset)
            != (
                position,
                offset,
            )
        ):
            return 0
        self._index = index = known.head(position, relative)
        self._last_indexed = index.positions[-1] if index.positions else 0
        self.next_offset = offset
        self.first_timestamp = read_header(self.file.read(0, HEADER_BYTES)).max_timestamp
        if index.times:
            self.max_timestamp = index.times[-1]
            self.max_timestamp_offset = self.base_offset + index.time_offsets[-1]
        self.head_size = position
        return position

    def _read_index(self, size: int, *, is_growing: bool) -> SparseIndex | None:
        try:
            files = self._open_segments.files
            return SparseIndex.load(files, self.path(INDEX), self.path(TIME_INDEX), size, is_growing=is_growing)
        except ValueError as error:
            logger.warning("rebuilt an index", extra=fields(segment=str(self.path()), reason=str(error)))
        return None

    def is_checked(self, start: int, end: int) -> bool:
        """Whether these bytes had their CRC checked and need not be looked at again while they stay in memory."""
        return start >= self.appended_from or self.checked.covers(start, min(end, self.appended_from))

    def forget_checks(self) -> None:
        """Pages have left the memory: whatever comes back from the disk has to be looked at again."""
        self.checked = Ranges()
        self.appended_from = self.size

    def lost_at(self, offset: int) -> Damage | None:
        """The damage that an offset fell to."""
        for damage in self.damage:
            if damage.first_offset <= offset < (damage.resumes_at or 0):
                return damage
        return None

    def around_damage(self, position: int, offset: int) -> tuple[int, int]:
        """Where a walk to `offset` from `position` starts and ends, so that it does not lead through damage."""
        for damage in self.damage:
            if offset >= (damage.resumes_at or 0):
                position = max(position, damage.end)
        return position, self.sound_end(position)

    def sound_end(self, position: int) -> int:
        """Where the first damage at or behind `position` begins, or the end of the segment."""
        return next((damage.start for damage in self.damage if damage.end > position), self.size)

    def survey(self) -> Survey:
        """Reads the whole segment; changes nothing, so that a thread may do it while the log goes on."""
        index, damage, last_indexed = SparseIndex(), [], 0
        end = self.size  # before the offset: see append
        next_offset, max_timestamp = self.next_offset, NO_TIMESTAMP
        for found in survey(self.file, 0, end, self.base_offset - 1, next_offset):
            if isinstance(found, Damage):
                damage.append(found if found.resumes_at is not None else found._replace(resumes_at=next_offset))
                continue
            relative = found.header.base_offset - self.base_offset
            if found.position - last_indexed >= _SURVEY_INTERVAL_BYTES:
                last_indexed = found.position
                index.add(relative, found.position)
            if found.header.max_timestamp > max_timestamp and not found.header.is_control:
                max_timestamp = found.header.max_timestamp
                index.add_time(max_timestamp, relative)
        return Survey(index, tuple(damage), end)

    def take(self, found: Survey) -> None:
        """Goes by what a survey showed from now on; entries that came since are kept."""
        if self._index is not None:
            found.entries.extend(self._index, found.end)
        self._index = found.entries
        self._last_indexed = found.entries.positions[-1] if found.entries.positions else 0
        self.mark_damage(tuple(damage for damage in found.damage if damage not in self.damage))

    def mark_damage(self, found: tuple[Damage, ...]) -> None:
        """Notes damage and says so in the broker's log."""
        for damage in found:
            self.checked.remove(damage.start, damage.end)
            what = "damaged bytes are left in place" if damage.end > damage.start else "records are missing"
            logger.error(
                f"{what}: reads stop before that, what lies behind can be read",
                extra=fields(
                    log=self.folder.name,
                    segment=self.path().name,
                    position=damage.start,
                    bytes=damage.end - damage.start,
                    lost_from_offset=damage.first_offset,
                    readable_again_from=damage.resumes_at,
                ),
            )
        self.damage = tuple(sorted({*self.damage, *found}, key=lambda damage: (damage.start, damage.first_offset)))

    def mended(self, damage: Damage) -> None:
        """A copy of what was written lies in the place of damage; it is checked when it is read."""
        self.damage = tuple(each for each in self.damage if each != damage)

    def head(self, end_offset: int) -> Segment:
        """What is left of the segment without the batches that reach to `end_offset` or behind, as a segment of its
        own: current readers of this one go on with it. Its end is that of its last batch. Reads the place; changes
        nothing.
        """
        relative = end_offset - self.base_offset
        kept: list[FoundBatch | Damage] = []
        while not kept and relative > 0:
            relative, position = self.index.entry_before(relative)
            for found in survey(self.file, position, self.size, self.base_offset + relative - 1, self.next_offset):
                behind = found.resumes_at if isinstance(found, Damage) else found.header.next_offset
                if behind is None or behind > end_offset:
                    break
                kept.append(found)
        head = Segment(self.folder, self.base_offset, self._open_segments)
        head.forget_content()
        head.entry_synced = True
        if kept:
            head._take_from(self, kept)
        return head

    def _take_from(self, whole: Segment, last: list[FoundBatch | Damage]) -> None:
        """Becomes the part of a segment that ends with `last`, which reach back to an entry of its index at least."""
        size = last[-1].end
        behind = last[-1].resumes_at if isinstance(last[-1], Damage) else last[-1].header.next_offset
        self.next_offset = behind or self.base_offset
        self.size = self.synced_size = self.written_back = self.hot_from = size
        self.appended_from = min(whole.appended_from, size)
        for start, end in whole.checked:
            self.checked.add(start, min(end, size))
        self.damage = tuple(damage for damage in whole.damage if damage.start < size)
        self.first_timestamp = whole.first_timestamp
        self._index = index = whole.index.head(size, self.next_offset - self.base_offset)
        self._last_indexed = index.positions[-1] if index.positions else 0
        if index.times:
            self.max_timestamp = index.times[-1]
            self.max_timestamp_offset = self.base_offset + index.time_offsets[-1]
        for header in (found.header for found in last if not isinstance(found, Damage)):
            if header.max_timestamp > self.max_timestamp and not header.is_control:
                self.max_timestamp = header.max_timestamp
                self.max_timestamp_offset = header.base_offset

    def pin(self) -> None:
        """Keeps the file and the indexes open from now on."""
        self.is_pinned = True
        self._file, self._index = self.file, self.index

    def release(self) -> bool:
        """Lets the file go, and the indexes if they are on disk; False if the file is still needed.

        In any thread. An append may come in between: this first lets the file go and then looks at the size, an append
        does it the other way round, so that one of the two sees what the other did. A file with bytes that are not
        synced must stay open.
        """
        file = self._file
        if self.is_pinned or self.synced_size < self.size:
            return False
        self._file = None
        if self.synced_size < self.size:
            self._file = file
            return False
        if self.index_saved:
            self._index = None
        return True

    def retire(self) -> None:
        """The segment left its log; readers that are not done keep its file and indexes."""
        self._open_segments.forget(self)

    def close(self) -> None:
        """Lets everything go."""
        self.retire()
        self._file = None
        self._index = None


def must_roll(
    segment: Segment, header: BatchHeader, base_offset: int, size: int, config: TopicConfig, jitter_ms: int
) -> bool:
    """Whether a batch of so many bytes begins a new segment."""
    if segment.size == 0:
        return False
    return (
        segment.size + size > config.segment_bytes
        or base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE >> 1
        or (
            header.max_timestamp - segment.first_timestamp > config.segment_ms - jitter_ms
            and segment.first_timestamp >= 0
        )
    )


def new_jitter_ms(config: TopicConfig) -> int:
    """How much sooner the next segment is rolled by time, so that not all logs roll at once."""
    return random.randint(0, min(config.segment_jitter_ms, config.segment_ms))
