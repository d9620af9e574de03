"""A log in segment files: append and roll.

`reading` has what reads it, `flusher` what syncs it, `recovery` how it comes back after a stop, `cleaning` how records
are removed from its start, its end or its middle.

Invariants:
- `segments` is never empty, ascending by base offset; the last one is the only one written to.
- A log without files has one segment, which is empty: the first append makes the files (`first_files`).
- start_offset <= end_offset, and end_offset == segments[-1].next_offset.
- Everything below `flusher.flushed_offset` would survive a power loss.
- Once `failure` is set the log neither takes nor serves anything: after a failed write or sync it is unknown what the
  file holds.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from penstock.config.setting import LONG_MAX
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError, UnsyncedError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.records.batch import BatchHeader, read_header, stamp
from penstock.records.control import Marker
from penstock.storage.admission import Checked, Inspected, check_append, check_marker, check_retired
from penstock.storage.contract import NOTHING, DamagedRange, Log, LogSegment, Piece, SideFolder, Slice, TimedOffset
from penstock.storage.epochs import EpochHistory
from penstock.storage.leader_batches import copies_of
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Hold
from penstock.storage.segmented.background_tasks import BackgroundTasks
from penstock.storage.segmented.cleaning.cleaner import Cleaner
from penstock.storage.segmented.cleaning.trimming import Trimmer
from penstock.storage.segmented.cleaning.truncation import Cutter
from penstock.storage.segmented.disk.first_files import FirstFiles, make_files
from penstock.storage.segmented.disk.state_files import StateFiles
from penstock.storage.segmented.flusher import Flusher, FlushRule
from penstock.storage.segmented.index import MAX_RELATIVE
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.reading.reader import Reader, look_up
from penstock.storage.segmented.reading.tag_index import SegmentTags
from penstock.storage.segmented.recovery import repair
from penstock.storage.segmented.segment import Segment, must_roll, new_jitter_ms
from penstock.storage.segmented.write_failures import check_room, write_failed

logger = logging.getLogger(__name__)

_PARTS = (
    "_background",
    "_cleaner",
    "_cutter",
    "_flush_rule",
    "_flusher",
    "_reader",
    "_state_files",
    "_trimmer",
    "tags",
)


class SegmentedLog(Log):
    """One partition on disk; made by `log_recovery.recover` or `create`."""

    def __init__(
        self,
        at: TopicPartition,
        topic_id: TopicId,
        folder: Path,
        config: TopicConfig,
        environment: LogEnvironment,
        segments: list[Segment],
        *,
        start_offset: int,
        flushed_offset: int,
        epochs: EpochHistory,
        producers: ProducerState,
        high_watermark: int = -1,
        epochs_are_saved: bool = True,
        producers_are_saved: bool = True,
        has_files: bool = True,
        saved_end: int = -1,
    ) -> None:
        """`saved_end`: the end of the log if all that a clean stop saves is on disk for it."""
        self.topic_partition = at
        self.topic_id = topic_id
        self.folder = folder
        self.files = environment.files
        self.config = config
        self.segments = segments
        self.start_offset = start_offset
        self.end_offset = segments[-1].next_offset
        self.epochs = epochs
        self.producers = producers
        self.saved_high_watermark = high_watermark
        self._saved_end = saved_end
        self._first_files = None if has_files else FirstFiles()
        self.refusal: StorageError | None = None
        """Why nothing is appended now: the failure, or a cut."""
        self._env = environment
        self._active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._last_append = (-1, -1)
        """Offset and position of the last append: where a reader at the end of the log goes on."""
        self._jitter_ms = 0
        """How much sooner the active segment is rolled by time, so that not all logs roll at once."""
        self._flushed_offset = flushed_offset
        """What the flusher begins with."""
        if not epochs_are_saved:
            self._flusher.before_next_sync(self._state_files.save_epochs)
        if not producers_are_saved:
            self._flusher.before_next_sync(self._state_job(self._active))
        for segment in segments:
            if segment.synced_size < segment.size:
                self._flusher.adopt(segment)

    # A broker may have thousands of logs, most of which are never used: their parts are made when they are needed.

    @cached_property
    def moving(self) -> asyncio.Lock:
        """Held while the start of the log moves, or its end goes back."""
        return asyncio.Lock()

    @cached_property
    def _background(self) -> BackgroundTasks:
        return BackgroundTasks(str(self.topic_partition))

    @cached_property
    def _flush_rule(self) -> FlushRule:
        return FlushRule(lambda: self._background.start(self.flush()))

    @cached_property
    def tags(self) -> SegmentTags:  # type: ignore[override]
        return SegmentTags(self, self._background, self._env)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(str(self.topic_partition), self._env.read_pool)

    @cached_property
    def _state_files(self) -> StateFiles:
        return StateFiles(self.files, self.folder, self.epochs, self.producers)

    @cached_property
    def _cleaner(self) -> Cleaner:
        return Cleaner(self, self._state_files, self._env)

    @cached_property
    def _flusher(self) -> Flusher:
        env = self._env
        name = str(self.topic_partition)
        flusher = Flusher(name, env.outstanding, env.sync_pool, env.write_back_pool, self.fail)
        flusher.flushed_offset = flusher.recovery_offset = self._flushed_offset
        return flusher

    @cached_property
    def _trimmer(self) -> Trimmer:
        return Trimmer(self, self._cleaner, self._flusher, self._state_files, self._background, self._env)

    @cached_property
    def _cutter(self) -> Cutter:
        return Cutter(self, self._cleaner, self._flusher, self._background, self._env)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def described_segments(self) -> Sequence[LogSegment]:
        if not self.has_files:
            return ()
        return [
            LogSegment(each.base_offset, each.next_offset, each.size, each.first_timestamp, each.max_timestamp)
            for each in self.segments
        ]

    @property
    def visible_end(self) -> int:
        return self._flusher.flushed_offset if self.config.flush_messages == 1 else self.end_offset

    @property
    def has_files(self) -> bool:
        """False before the first append: then nothing of the log is on disk."""
        return self._first_files is None or self._first_files.are_made

    @property
    def is_only_in_memory(self) -> bool:
        """Nothing of the log is on disk, or on its way there."""
        return self._first_files is not None and self._first_files.is_idle

    @property
    def side_folder(self) -> SideFolder:
        return SideFolder(self.folder, self.files)

    def has_room(self) -> bool:
        return self._env.files.has_room(self.folder if self.has_files else self.folder.parent)

    @property
    def flushed_offset(self) -> int:
        return self._flusher.flushed_offset

    @property
    def recovery_offset(self) -> int:
        """What lies below need not be read after a crash."""
        return self._flusher.recovery_offset

    async def prepare_write(self) -> None:
        if self._first_files is not None:
            await self._need_files()
        if not self._active.is_open:
            await self._env.open_segments.make_room()
        flusher = self._flusher
        if flusher.is_far_ahead:
            await flusher.wait_for_backlog()

    async def _need_files(self) -> None:
        if self._first_files is not None:
            await self._first_files.ensure(self)
            self._first_files = None

    async def make_files(self) -> None:
        await self._env.open_segments.make_room()
        await asyncio.get_running_loop().run_in_executor(
            self._env.sync_pool, make_files, self.files, self.folder, self.topic_id, self.topic_partition, self._active
        )
        await self._env.logs_folder.sync()

    def check(
        self,
        batch: memoryview,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Checked:
        if self.refusal is not None:
            raise self.refusal
        now_ms = self._env.clock.now_ms()
        if (successor := self.successor) is not None:
            return check_retired(batch, self.config, self.producers, now_ms, successor)
        try:
            return check_append(batch, self.config, self.producers, now_ms, guard, is_own=is_own, inspected=inspected)
        except ApiError as error:
            check_room(self, error)
            raise

    def check_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> Checked:
        if self.refusal is not None:
            raise self.refusal
        marker = Marker(committed, coordinator_epoch)
        return check_marker(self.producers, producer_id, producer_epoch, marker, self._env.clock.now_ms())

    async def write(self, checked: Checked, base_offset: int, leader_epoch: int) -> None:
        assert base_offset == self.end_offset
        batch, header = checked.batch, checked.header
        stamp(batch, base_offset, leader_epoch)
        self._write(batch, header, base_offset, leader_epoch)
        if checked.marker is not None:
            self._remember_marker(checked, base_offset)
        elif header.producer_id >= 0:
            self.producers.remember(header, base_offset, checked.now_ms)

    async def write_stamped(self, batch: memoryview) -> None:
        if self.refusal is not None:
            raise self.refusal
        header = read_header(batch)
        self._write(batch, header, header.base_offset, header.leader_epoch)

    async def append_as_is(self, batches: memoryview) -> int:
        if self.refusal is not None:
            raise self.refusal
        if self._first_files is not None:
            await self._need_files()
        copies = copies_of(batches, self.start_offset, self.end_offset)
        if copies and copies[0][0].base_offset < self.end_offset:
            await self._cutter.begin_at(self.start_offset, copies[0][0].base_offset)
        now_ms, messages = self._env.clock.now_ms(), 0
        for header, batch in copies:
            self._write(batch, header, header.base_offset, header.leader_epoch)
            if header.producer_id >= 0:
                self.producers.replay(batch, header, now_ms)
            messages += header.last_offset_delta + 1
        if copies:
            self.epochs.trim(self.start_offset)
            await self.secure(messages)
            self.producers.settle(self.readable_end)
        return self.end_offset

    async def pieces(self, wanted: Sequence[Piece]) -> list[bytes]:
        if self.failure is not None:
            raise self.failure
        return await self._reader.pieces(self.segments, wanted)

    def sync_after(self, companion: Log) -> None:
        assert isinstance(companion, SegmentedLog)
        self._flusher.ahead = companion._flusher

    def _write(self, batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int) -> None:
        """Writes a batch that is stamped already to the end of the log."""
        if base_offset - self.end_offset > MAX_RELATIVE >> 1:
            # Further than the indexes of a segment reach: the gap becomes the end of the segment before.
            self.roll(base_offset)
        segment = self._active
        if must_roll(segment, header, base_offset, len(batch), self.config, self._jitter_ms):
            segment = self.roll()
        position = segment.size
        try:
            segment.append(batch, header, base_offset, self.config.index_interval_bytes)
        except OSError as error:
            raise write_failed(self, segment, error) from error
        self.disk_is_full = self.disk_is_full and not self.has_room()
        self.end_offset = segment.next_offset
        self._last_append = (base_offset, position)
        if self.epochs.latest != leader_epoch and self.epochs.begin(leader_epoch, base_offset):
            self._flusher.before_next_sync(self._state_files.save_epochs)
        self._flusher.wrote(segment, segment.size - position)

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        if self.failure is not None:
            raise self.failure
        if not self.start_offset <= offset <= self.end_offset:
            raise ApiError(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} to {self.end_offset} of {self.topic_partition}",
            )
        if offset >= end_offset:
            return NOTHING
        at = bisect_right(self._bases, offset) - 1
        # Compaction can leave the end of a segment without records: a later one then has the requested ones.
        for segment in self.segments[max(0, at) :]:
            known_offset, known_position = self._last_append
            hint = known_position if segment is self._active and offset == known_offset else -1
            segment.was_used = True
            if not segment.is_open:
                await self._env.open_segments.make_room()
            try:
                found = await self._reader.read(segment, offset, max_bytes, end_offset, hint)
            except (OSError, ApiError) as error:
                if segment not in self.segments:
                    # It was deleted, replaced or cut while it was being looked at.
                    return await self.read(offset, max_bytes, end_offset)
                if isinstance(error, ApiError):
                    raise
                raise StorageError(f"reading {segment.path().name} failed: {error}") from error
            if found.size or segment.next_offset >= end_offset:
                return found
        return NOTHING

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        return await look_up(self, lambda: self._reader.find_time(self.segments, timestamp_ms, self.start_offset))

    async def find_max_timestamp(self) -> TimedOffset | None:
        return await look_up(self, lambda: self._reader.find_max_timestamp(self.segments, self.start_offset))

    @property
    def damage(self) -> list[DamagedRange]:
        return repair.damage_of(self.segments)

    async def damaged_bytes(self, damage: DamagedRange) -> bytes:
        found = repair.find(self.segments, damage)
        if found is None or not damage.size:
            return b""
        segment, place = found
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._env.read_pool, segment.file.read, place.start, damage.size)

    async def repair(self, damage: DamagedRange, batches: memoryview) -> bool:
        async with self.moving:
            found = repair.find(self.segments, damage)
            if found is None or self.refusal is not None or not repair.fits(damage, batches, self.epochs):
                return False
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._env.sync_pool, repair.write, *found, batches)
            except OSError as error:
                logger.error(
                    "could not repair damaged records", extra=fields(log=str(self.topic_partition), error=str(error))
                )
                return False
            segment, place = found
            segment.mended(place)
            return segment in self.segments

    async def trim(self, start_offset: int) -> None:
        await self._trimmer.trim(start_offset)

    async def cut(self, end_offset: int) -> None:
        if end_offset < self.end_offset:
            await self._cutter.cut(end_offset)

    async def begin_at(self, start_offset: int) -> None:
        await self._need_files()
        await self._cutter.begin_at(start_offset, start_offset)

    async def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._flush_rule.begin_anew()
        await self._flusher.flush(self.end_offset)

    def configure(self, config: TopicConfig) -> None:
        self.config = config

    async def apply_retention(self, hold: Hold | None = None) -> int:
        if not self.has_files:
            return 0
        now_ms = self._env.clock.now_ms()
        self.producers.expire(now_ms - self._env.producer_expiry_ms)
        if "delete" not in self.config.cleanup_policy:
            return 0
        return await self._trimmer.apply_retention(now_ms, hold)

    def drop_below_start(self) -> None:
        """Lets the segments below the start go, unless a compaction or a cut is using them, which then calls again."""
        if not self._cleaner.is_busy and not self._cutter.is_busy:
            self._trimmer.drop_below_start()

    def cool(self) -> None:
        """What is in the segments now no longer counts as just appended: before the broker sends it, it checks the page
        cache. If there is much of it, what a recovery needs to begin behind it is saved with the next sync.
        """
        active = self._active
        if active.size - active.head_size >= self._env.recovery_bytes and self.refusal is None:
            self._flusher.before_next_sync(active.head_job())
            self._flusher.before_next_sync(self._state_job(active))
        for segment in reversed(self.segments):
            if segment.hot_from == segment.size and segment is not self._active:
                break
            segment.hot_from = segment.size

    async def compact(self) -> bool:
        if "compact" not in self.config.cleanup_policy or self.refusal is not None or not self.has_files:
            return False
        return await self._cleaner.run()

    async def close(self, *, is_removed: bool = False) -> None:
        """Flushes, unless the log is about to be removed, and lets every file go."""
        if self._first_files is not None:
            await self._first_files.wait()
        if self.has_files:
            self._flush_rule.close()
            await self._cutter.close()
            await self._cleaner.close()
            await self.tags.close()
            if self.failure is None and not is_removed:
                self._save_with_next_sync()
                await self.flush()
            await self._flusher.close()
            for segment in self.segments:
                self._flusher.drop(segment)
                segment.close()
        if is_removed:
            self._take_apart()

    def _take_apart(self) -> None:
        """The log is out of use: without its parts, which refer to it, Python frees it at the last reference."""
        for part in _PARTS:
            self.__dict__.pop(part, None)

    def _save_with_next_sync(self) -> None:
        """What the next start needs so that it does not have to read the log, unless it is on disk already."""
        if self.end_offset == self._saved_end:
            return
        for segment in self.segments:
            if not segment.index_saved:
                self._flusher.before_next_sync(segment.save_index)
        if self.end_offset > self._active.base_offset:
            self._flusher.before_next_sync(self._state_job(self._active))

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begins a new segment at the end of the log, or at an offset behind it, which becomes the end; the old one is
        synced with its indexes in the background.
        """
        old = self._active
        try:
            new = Segment.create(self.folder, base_offset or self.end_offset, self._env.open_segments)
        except OSError as error:
            raise write_failed(self, old, error) from error
        self._saved_end = -1
        old.next_offset = self.end_offset = new.base_offset
        self.segments.append(new)
        self._bases.append(new.base_offset)
        self._active = new
        self._jitter_ms = new_jitter_ms(self.config)
        self._flusher.before_next_sync(old.save_index)
        self._flusher.before_next_sync(self._state_job(old))
        self._background.start(self.flush())
        return new

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Puts compacted segments in the place of those they were made from."""
        self._saved_end = -1
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = new
        self._bases = [segment.base_offset for segment in self.segments]
        for segment in old:
            self._flusher.drop(segment)
            segment.retire()

    def shorten(self, segments: list[Segment], start_offset: int, end_offset: int) -> list[Segment]:
        """These segments are the log from now on; gives those that no longer are."""
        self._saved_end = -1
        gone = [segment for segment in self.segments if segment not in segments]
        self.segments, self._active = segments, segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self.start_offset, self.end_offset = start_offset, end_offset
        if self.saved_high_watermark >= 0:
            self.saved_high_watermark = max(start_offset, min(self.saved_high_watermark, end_offset))
        self._last_append = (-1, -1)
        self._flush_rule.begin_anew()
        return gone

    def _state_job(self, segment: Segment) -> Callable[[], None]:
        return self._state_files.state_job(segment, self.end_offset, self.saved_high_watermark)

    @property
    def secures_later(self) -> bool:
        return self.config.flush_messages < LONG_MAX

    async def secure(self, messages: int) -> None:
        if self.config.flush_messages == 1 or (messages and self._flush_rule.is_due(messages, self.config)):
            await self._sync()

    async def _sync(self) -> None:
        """Syncs what was appended."""
        try:
            await self.flush()
        except StorageError as error:
            raise UnsyncedError(str(error)) from error

    def fail(self, failure: StorageError) -> StorageError:
        """Takes the log offline."""
        if self.failure is None:
            logger.critical("log is offline", extra=fields(log=str(self.topic_partition), reason=str(failure)))
            self.failure = self.refusal = failure
        return failure
