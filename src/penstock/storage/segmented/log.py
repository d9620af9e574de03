"""A log in segment files: append and roll. Reading is in `reader`, syncing in `flusher`, coming back after a stop in
`recovery`, moving the start in `trimming`, dropping the end in `cutting`.

Invariants:
- `segments` is never empty, ascending by base offset; the last one is the only one written to.
- start_offset <= end_offset, and end_offset == segments[-1].next_offset.
- Everything below `flusher.flushed_offset` would survive a power loss.
- Once `failure` is set the log neither takes nor serves anything: after a failed write or sync nobody knows what the
  file holds.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.records.batch import BatchHeader, read_header, stamp
from penstock.records.control import Marker, build_marker
from penstock.storage.admission import admit, look_back
from penstock.storage.contract import NOTHING, Appended, Log, Parting, Piece, Slice, TimedOffset
from penstock.storage.copies import copies_of
from penstock.storage.epochs import EpochHistory
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Hold
from penstock.storage.segmented.background import Background
from penstock.storage.segmented.cleaner import Cleaner
from penstock.storage.segmented.cutting import Cutter
from penstock.storage.segmented.flusher import Flusher
from penstock.storage.segmented.flushrule import FlushRule
from penstock.storage.segmented.index import MAX_RELATIVE
from penstock.storage.segmented.reader import Reader, look_up
from penstock.storage.segmented.rolling import must_roll, new_jitter_ms
from penstock.storage.segmented.segment import Segment
from penstock.storage.segmented.sidefiles import SideFiles
from penstock.storage.segmented.surroundings import Surroundings
from penstock.storage.segmented.tagindex import SegmentTags
from penstock.storage.segmented.trimming import Trimmer
from penstock.storage.segmented.undoing import check_room, write_failed

logger = logging.getLogger(__name__)


class SegmentedLog(Log):
    """One partition on disk; made by `recovery.recover` or `create`."""

    def __init__(
        self,
        at: TopicPartition,
        topic_id: TopicId,
        folder: Path,
        config: TopicConfig,
        surroundings: Surroundings,
        segments: list[Segment],
        *,
        start_offset: int,
        flushed_offset: int,
        epochs: EpochHistory,
        producers: ProducerState,
        high_watermark: int = -1,
        epochs_are_saved: bool = True,
    ) -> None:
        self.topic_partition = at
        self.topic_id = topic_id
        self.folder = folder
        self.files = surroundings.files
        self.config = config
        self.segments = segments
        self.start_offset = start_offset
        self.end_offset = segments[-1].next_offset
        self.epochs = epochs
        self.producers = producers
        self.saved_high_watermark = high_watermark
        self.moving = asyncio.Lock()
        """Held while the start of the log moves, or its end goes back."""
        self.refusal: StorageError | None = None
        """Why nothing is appended now: the failure, or a cut."""
        self._env = surroundings
        self._active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._last_append = (-1, -1)
        """Offset and position of the last append: where a reader at the end of the log goes on."""
        self._jitter_ms = 0
        """How much sooner the active segment is rolled by time, so that not all logs roll at once."""
        self._background = Background(str(at))
        self._flush_rule = FlushRule(lambda: self._background.start(self.flush()))
        self.tags: SegmentTags = SegmentTags(self, self._background, surroundings)
        self._reader = Reader(str(at), surroundings.read_pool)
        self._side_files = SideFiles(surroundings.files, folder, epochs, producers)
        self._cleaner = Cleaner(self, self._side_files, surroundings)
        self._flusher = Flusher(
            str(at), surroundings.outstanding, surroundings.sync_pool, surroundings.write_back_pool, self.fail
        )
        self._trimmer = Trimmer(self, self._cleaner, self._flusher, self._side_files, self._background, surroundings)
        self._cutter = Cutter(self, self._cleaner, self._flusher, self._background, surroundings)
        self._flusher.flushed_offset = self._flusher.recovery_offset = flushed_offset
        if not epochs_are_saved:
            self._flusher.before_next_sync(self._side_files.save_epochs)
        for segment in segments:
            if segment.synced_size < segment.size:
                self._flusher.adopt(segment)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def visible_end(self) -> int:
        return self._flusher.flushed_offset if self.config.flush_messages == 1 else self.end_offset

    def has_room(self) -> bool:
        return self._env.files.has_room(self.folder)

    @property
    def flushed_offset(self) -> int:
        return self._flusher.flushed_offset

    @property
    def recovery_offset(self) -> int:
        """What lies below need not be read after a crash."""
        return self._flusher.recovery_offset

    async def admit(self) -> None:
        await self._flusher.admit()

    async def append(
        self,
        batch: memoryview,
        leader_epoch: int,
        *,
        guard: int | None = None,
        is_own: bool = False,
        part: Parting | None = None,
    ) -> Appended:
        if self.refusal is not None:
            raise self.refusal
        now_ms = self._env.clock.now_ms()
        if (successor := self.successor) is not None:
            admitted = look_back(batch, self.config, self.producers, successor)
        else:
            try:
                admitted = admit(batch, self.config, self.producers, now_ms, guard, is_own=is_own)
            except ApiError as error:
                check_room(self, error)
                raise
        if admitted.repeat_of is not None:
            if self.config.flush_messages == 1:
                await self.flush()
            last_offset = admitted.repeat_of + admitted.header.last_offset_delta
            return Appended(admitted.repeat_of, last_offset, admitted.append_time_ms, is_repeat=True)
        batch, header = admitted.batch, admitted.header
        base_offset = self.end_offset
        stamp(batch, base_offset, leader_epoch)
        if part is not None:
            batch = part(batch, header, base_offset, leader_epoch)
            header = read_header(batch)
        self._write(batch, header, base_offset, leader_epoch)
        if header.producer_id >= 0:
            self.producers.remember(header, base_offset, now_ms)
        await self.secure(header.last_offset_delta + 1)
        return Appended(base_offset, base_offset + header.last_offset_delta, admitted.append_time_ms)

    async def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        part: Parting | None = None,
    ) -> Appended:
        if self.refusal is not None:
            raise self.refusal
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now_ms, marker = self._env.clock.now_ms(), Marker(committed, coordinator_epoch)
        batch = memoryview(build_marker(producer_id, producer_epoch, marker, now_ms))
        offset = self.end_offset
        stamp(batch, offset, leader_epoch)
        if part is not None:
            batch = part(batch, read_header(batch), offset, leader_epoch)
        self._write(batch, read_header(batch), offset, leader_epoch)
        self.producers.remember_marker(producer_id, producer_epoch, marker, offset, now_ms)
        await self.secure(1)
        self.producers.settle(self.visible_end)
        return Appended(offset, offset)

    async def append_as_is(self, batches: memoryview) -> int:
        if self.refusal is not None:
            raise self.refusal
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
            self.producers.settle(self.visible_end)
        return self.end_offset

    def put(self, batch: memoryview) -> None:
        if self.refusal is not None:
            raise self.refusal
        header = read_header(batch)
        self._write(batch, header, header.base_offset, header.leader_epoch)

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
            self._flusher.before_next_sync(self._side_files.save_epochs)
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
        # Compaction can leave the end of a segment without records: what is asked for is then in a later one.
        for segment in self.segments[max(0, at) :]:
            known_offset, known_position = self._last_append
            hint = known_position if segment is self._active and offset == known_offset else -1
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

    async def trim(self, start_offset: int) -> None:
        await self._trimmer.trim(start_offset)

    async def cut(self, end_offset: int) -> None:
        if end_offset < self.end_offset:
            await self._cutter.cut(end_offset)

    async def begin_at(self, start_offset: int) -> None:
        await self._cutter.begin_at(start_offset, start_offset)

    async def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._flush_rule.begin_anew()
        await self._flusher.flush(self.end_offset)

    def configure(self, config: TopicConfig) -> None:
        self.config = config

    async def apply_retention(self, hold: Hold | None = None) -> int:
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
        """What is in the segments now no longer counts as just appended: before it is sent, the page cache is asked. If
        there is much of it, what a recovery needs to begin behind it is saved with the next sync.
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
        if "compact" not in self.config.cleanup_policy or self.refusal is not None:
            return False
        return await self._cleaner.run()

    async def close(self, *, is_removed: bool = False) -> None:
        """Flushes, unless the log is about to be removed, and lets every file go."""
        self._flush_rule.close()
        await self._cutter.close()
        await self._cleaner.close()
        await self.tags.close()
        if self.failure is None and not is_removed:
            for segment in self.segments:
                if not segment.index_saved:
                    self._flusher.before_next_sync(segment.save_index)
            if self.end_offset > self._active.base_offset:
                self._flusher.before_next_sync(self._state_job(self._active))
            await self.flush()
        await self._flusher.close()
        for segment in self.segments:
            self._flusher.drop(segment)
            segment.close()

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begins a new segment at the end of the log, or at an offset behind it, which becomes the end; the old one is
        synced with its indexes in the background.
        """
        old = self._active
        try:
            new = Segment.create(self.folder, base_offset or self.end_offset, self._env.open_segments)
        except OSError as error:
            raise write_failed(self, old, error) from error
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
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = new
        self._bases = [segment.base_offset for segment in self.segments]
        for segment in old:
            self._flusher.drop(segment)
            segment.retire()

    def shorten(self, segments: list[Segment], start_offset: int, end_offset: int) -> list[Segment]:
        """These segments are the log from now on; gives those that no longer are."""
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
        return self._side_files.state_job(segment, self.end_offset, self.saved_high_watermark)

    async def secure(self, messages: int) -> None:
        if self._flush_rule.is_due(messages, self.config):
            await self.flush()

    def fail(self, failure: StorageError) -> StorageError:
        """Takes the log offline."""
        if self.failure is None:
            logger.critical("log is offline", extra=fields(log=str(self.topic_partition), reason=str(failure)))
            self.failure = self.refusal = failure
        return failure
