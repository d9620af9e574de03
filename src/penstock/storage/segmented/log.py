"""A log in segment files: append, roll, trim. Reading is in `reader`, syncing in `flusher`, the start in `recovery`.

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
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from penstock.config.setting import LONG_MAX
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, DiskFullError, StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.records.batch import BatchHeader, stamp
from penstock.storage.admission import admit
from penstock.storage.contract import NOTHING, Appended, Log, Slice, TimedOffset
from penstock.storage.epochs import EpochHistory
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.cleaner import Cleaner
from penstock.storage.segmented.flusher import NO_ROOM, Flusher
from penstock.storage.segmented.index import MAX_RELATIVE
from penstock.storage.segmented.reader import Reader
from penstock.storage.segmented.retention import start_by_retention
from penstock.storage.segmented.segment import PRODUCERS, SUFFIXES, Segment, segment_name
from penstock.storage.segmented.surroundings import Surroundings

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
    ) -> None:
        self.topic_partition = at
        self.topic_id = topic_id
        self.folder = folder
        self.config = config
        self.segments = segments
        self.start_offset = start_offset
        self.end_offset = segments[-1].next_offset
        self.epochs = epochs
        self.producers = producers
        self.failure: StorageError | None = None
        self._env = surroundings
        self._active = segments[-1]
        self._bases = [segment.base_offset for segment in segments]
        self._last_append = (-1, -1)
        """Offset and position of the last append: where a reader at the end of the log goes on."""
        self._jitter_ms = 0
        """How much sooner the active segment is rolled by time, so that not all logs roll at once."""
        self._disk_is_full = False
        self._unflushed_messages = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._reader = Reader(str(at), surroundings.read_pool)
        self._cleaner = Cleaner(self, surroundings)
        self._flusher = Flusher(
            str(at), surroundings.outstanding, surroundings.sync_pool, surroundings.write_back_pool, self._fail
        )
        self._flusher.flushed_offset = self._flusher.recovery_offset = flushed_offset
        for segment in segments:
            if segment.synced_size < segment.size:
                self._flusher.adopt(segment)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def visible_end(self) -> int:
        return self._flusher.flushed_offset if self.config.flush_messages == 1 else self.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._flusher.flushed_offset

    @property
    def recovery_offset(self) -> int:
        """What lies below need not be read after a crash."""
        return self._flusher.recovery_offset

    async def admit(self) -> None:
        await self._flusher.admit()

    async def append(self, batch: memoryview, leader_epoch: int) -> Appended:
        if self.failure is not None:
            raise self.failure
        now_ms = self._env.clock.now_ms()
        admitted = admit(batch, self.config, self.producers, now_ms)
        if admitted.repeat_of is not None:
            if self.config.flush_messages == 1:
                await self.flush()
            last_offset = admitted.repeat_of + admitted.header.last_offset_delta
            return Appended(admitted.repeat_of, last_offset, admitted.append_time_ms, is_repeat=True)
        header = admitted.header
        base_offset = self.end_offset
        stamp(admitted.batch, base_offset, leader_epoch)
        segment = self._active
        if self._must_roll(segment, header, len(admitted.batch)):
            segment = self.roll()
        position = segment.size
        try:
            segment.append(admitted.batch, header, base_offset, self.config.index_interval_bytes)
        except OSError as error:
            raise self._write_failed(segment, error) from error
        self._disk_is_full = False
        self.end_offset = segment.next_offset
        self._last_append = (base_offset, position)
        if header.producer_id >= 0:
            self.producers.remember(header, base_offset, now_ms)
        if self.epochs.latest != leader_epoch and self.epochs.begin(leader_epoch, base_offset):
            self._flusher.before_next_sync(self._save_epochs)
        self._flusher.wrote(segment, segment.size - position)
        await self._flush_if_due(header.last_offset_delta + 1)
        return Appended(base_offset, base_offset + header.last_offset_delta, admitted.append_time_ms)

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
            except OSError as error:
                if segment not in self.segments:
                    # It was deleted or replaced while it was being looked at.
                    return await self.read(offset, max_bytes, end_offset)
                raise StorageError(f"reading {segment.path().name} failed: {error}") from error
            if found.size or segment.next_offset >= end_offset:
                return found
        return NOTHING

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        return await self._look_up(lambda: self._reader.find_time(self.segments, timestamp_ms, self.start_offset))

    async def find_max_timestamp(self) -> TimedOffset | None:
        return await self._look_up(lambda: self._reader.find_max_timestamp(self.segments, self.start_offset))

    async def _look_up(self, look: Callable[[], Awaitable[TimedOffset | None]]) -> TimedOffset | None:
        if self.failure is not None:
            raise self.failure
        segments = list(self.segments)
        try:
            return await look()
        except OSError as error:
            if segments != self.segments:
                return await self._look_up(look)
            raise StorageError(f"reading {self.topic_partition} failed: {error}") from error

    async def trim(self, start_offset: int) -> None:
        if self.failure is not None:
            raise self.failure
        if start_offset > self.end_offset:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {start_offset} is above the end {self.end_offset}")
        if start_offset > self.start_offset:
            await self.flush()
            await self._move_start(start_offset)

    async def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._unflushed_messages = 0
        await self._flusher.flush(self.end_offset)

    def configure(self, config: TopicConfig) -> None:
        self.config = config

    async def apply_retention(self) -> None:
        now_ms = self._env.clock.now_ms()
        self.producers.expire(now_ms - self._env.producer_expiry_ms)
        if "delete" not in self.config.cleanup_policy or self.failure is not None or self._cleaner.is_busy:
            return
        closed, active = self.segments[:-1], self._active
        start = start_by_retention(closed, self.size_bytes, self.config, now_ms)
        if active.size and all(segment.next_offset <= start for segment in closed):
            end = start_by_retention(self.segments, self.size_bytes, self.config, now_ms)
            if end == self.end_offset and self._rolled():
                start = end
        if start > self.start_offset:
            await self._move_start(start)

    def cool(self) -> None:
        """What is in the segments now no longer counts as just appended: before it is sent, the page cache is asked."""
        for segment in reversed(self.segments):
            if segment.hot_from == segment.size and segment is not self._active:
                break
            segment.hot_from = segment.size

    async def compact(self) -> bool:
        if "compact" not in self.config.cleanup_policy or self.failure is not None:
            return False
        return await self._cleaner.run()

    async def close(self, *, is_removed: bool = False) -> None:
        """Flushes, unless the log is about to be removed, and lets every file go."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self._cleaner.close()
        if self._background:
            await asyncio.wait(self._background)
        if self.failure is None and not is_removed:
            for segment in self.segments:
                if not segment.index_saved:
                    self._flusher.before_next_sync(segment.save_index)
            if self.end_offset > self._active.base_offset:
                self._flusher.before_next_sync(self._snapshot_job(self.end_offset))
            await self.flush()
        await self._flusher.close()
        for segment in self.segments:
            self._flusher.drop(segment)
            segment.close()

    def roll(self) -> Segment:
        """Begins a new segment at the end of the log; the old one is synced with its indexes in the background."""
        old = self._active
        try:
            new = Segment.create(self.folder, self.end_offset, self._env.open_segments)
        except OSError as error:
            raise self._write_failed(old, error) from error
        self.segments.append(new)
        self._bases.append(new.base_offset)
        self._active = new
        self._jitter_ms = random.randint(0, min(self.config.segment_jitter_ms, self.config.segment_ms))
        self._flusher.before_next_sync(old.save_index)
        self._flusher.before_next_sync(self._snapshot_job(self.end_offset))
        self._in_background(self.flush())
        return new

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Puts compacted segments in the place of those they were made from."""
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = new
        self._bases = [segment.base_offset for segment in self.segments]
        for segment in old:
            self._flusher.drop(segment)
            segment.retire()

    def _must_roll(self, segment: Segment, header: BatchHeader, size: int) -> bool:
        if segment.size == 0:
            return False
        return (
            segment.size + size > self.config.segment_bytes
            or self.end_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE >> 1
            or (
                header.max_timestamp - segment.first_timestamp > self.config.segment_ms - self._jitter_ms
                and segment.first_timestamp >= 0
            )
        )

    async def _flush_if_due(self, messages: int) -> None:
        config = self.config
        self._unflushed_messages += messages
        if self._unflushed_messages >= config.flush_messages:
            await self.flush()
        elif config.flush_ms < LONG_MAX and self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(config.flush_ms / 1000, self._flush_by_time)

    def _flush_by_time(self) -> None:
        self._flush_timer = None
        self._in_background(self.flush())

    def _rolled(self) -> bool:
        """Begins a new segment so that the last one can go; a full disk is no reason to keep the others."""
        try:
            self.roll()
        except DiskFullError:
            return False
        return True

    async def _move_start(self, start_offset: int) -> None:
        """On return the new start would survive a crash."""
        self.start_offset = start_offset
        if self.epochs.trim(start_offset):
            self._flusher.before_next_sync(self._save_epochs)
        try:
            await self._env.start_moved()
        finally:
            # Even if that could not be noted: where the disk is full, this is what makes room.
            self.drop_below_start()

    def drop_below_start(self) -> None:
        """Lets the segments below the start go; while a compaction is using them they stay, and it calls again."""
        if self._cleaner.is_busy:
            return
        while len(self.segments) > 1 and self.segments[0].next_offset <= self.start_offset:
            self._delete(self.segments.pop(0))
        self._bases = [segment.base_offset for segment in self.segments]

    def _delete(self, segment: Segment) -> None:
        logger.info(
            "segment deleted",
            extra=fields(log=str(self.topic_partition), base_offset=segment.base_offset, bytes=segment.size),
        )
        self._flusher.drop(segment)
        segment.retire()
        self._in_background(self._remove_files(segment))

    async def _remove_files(self, segment: Segment) -> None:
        def remove() -> None:
            for suffix in SUFFIXES:
                self._env.files.remove(segment.path(suffix))

        await asyncio.get_running_loop().run_in_executor(self._env.sync_pool, remove)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._logged(work), name=f"log {self.topic_partition}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _logged(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except (StorageError, OSError) as error:
            logger.error("background work failed", extra=fields(log=str(self.topic_partition), error=str(error)))

    def _save_epochs(self) -> None:
        self._env.files.replace(self.folder / "epochs", self.epochs.to_text().encode())

    def _snapshot_job(self, base_offset: int) -> Callable[[], None]:
        """Saves the producers as of now, keeping one older snapshot in case this one is damaged."""
        files, folder, content = self._env.files, self.folder, self.producers.snapshot()

        def save() -> None:
            files.replace(folder / (segment_name(base_offset) + PRODUCERS), content)
            snapshots = sorted(name for name in files.list_folder(folder) if name.endswith(PRODUCERS))
            for name in snapshots[:-2]:
                files.remove(folder / name)

        return save

    def _write_failed(self, segment: Segment, error: OSError) -> StorageError:
        """A write that did not happen leaves the log as it was; if that cannot be made sure, the log goes offline."""
        try:
            segment.file.truncate(segment.size)
        except OSError as second:
            failure = StorageError(
                f"writing {self.topic_partition} failed ({error}) and could not be undone ({second})"
            )
            self._fail(failure)
            return failure
        if error.errno in NO_ROOM:
            if not self._disk_is_full:
                logger.error("no room to write", extra=fields(log=str(self.topic_partition), error=str(error)))
            self._disk_is_full = True
            return DiskFullError(f"no room on the disk for {self.topic_partition}: {error.strerror}")
        failure = StorageError(f"writing {self.topic_partition} failed: {error}")
        self._fail(failure)
        return failure

    def _fail(self, failure: StorageError) -> None:
        if self.failure is None:
            logger.critical("log is offline", extra=fields(log=str(self.topic_partition), reason=str(failure)))
            self.failure = failure
