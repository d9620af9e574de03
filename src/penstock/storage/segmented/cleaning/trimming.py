"""Moving the start of a log, by request or by retention, and letting go of the segments below it.

The new start is in the checkpoint on disk before a segment below it goes. Segments that a compaction or a cut is using
stay until that is over. Where the high watermark is known retention stays below it: what lies above may still be cut.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.errors import ApiError, Code, DiskFullError
from penstock.logs import fields
from penstock.storage.retention import Aged, Hold, lost_bytes, start_by_retention, start_with_hold
from penstock.storage.segmented.background_tasks import BackgroundTasks
from penstock.storage.segmented.cleaning.cleaner import Cleaner
from penstock.storage.segmented.disk.state_files import StateFiles
from penstock.storage.segmented.flusher import Flusher
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.segment import SUFFIXES, Segment

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog

logger = logging.getLogger(__name__)


class Trimmer:
    """Moves the start of one log."""

    def __init__(
        self,
        log: SegmentedLog,
        cleaner: Cleaner,
        flusher: Flusher,
        state_files: StateFiles,
        background: BackgroundTasks,
        environment: LogEnvironment,
    ) -> None:
        self._log = log
        self._cleaner = cleaner
        self._background = background
        self._flusher = flusher
        self._state_files = state_files
        self._env = environment

    async def trim(self, start_offset: int) -> None:
        log = self._log
        async with log.moving:
            if log.refusal is not None:
                raise log.refusal
            if start_offset > log.end_offset:
                raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {start_offset} is above the end {log.end_offset}")
            if start_offset > log.start_offset:
                await log.flush()
                await self._move_start(start_offset)

    async def apply_retention(self, now_ms: int, hold: Hold | None) -> int:
        log = self._log
        async with log.moving:
            if log.refusal is not None or self._cleaner.is_busy:
                return 0
            old_start, config = log.start_offset, log.config
            parts = [_aged(segment) for segment in log.segments]
            closed = [part for part in parts[:-1] if part.next_offset <= log.settled_end]
            start = start_by_retention(closed, log.size_bytes, config, now_ms)
            if parts[-1].size and all(part.next_offset <= start for part in closed):
                end = start_by_retention(parts, log.size_bytes, config, now_ms)
                if end == log.end_offset <= log.settled_end and self._rolled():
                    start = end
            start = start_with_hold(parts, start, config, now_ms, hold)
            if start <= old_start:
                return 0
            await self._move_start(start)
            return lost_bytes(parts, old_start, start, hold)

    def drop_below_start(self) -> None:
        """Lets the segments below the start go."""
        segments = self._log.segments
        while len(segments) > 1 and segments[0].next_offset <= self._log.start_offset:
            self._delete(segments[0])
            self._log.tags.forget(segments[0].base_offset)
            self._log.replace_segments(segments[:1], [])

    def _rolled(self) -> bool:
        """Begins a new segment so that the last one can go; a full disk is no reason to keep the others."""
        try:
            self._log.roll()
        except DiskFullError:
            return False
        return True

    async def _move_start(self, start_offset: int) -> None:
        """On return the new start would survive a crash."""
        log = self._log
        log.start_offset = start_offset
        if log.epochs.trim(start_offset):
            self._flusher.before_next_sync(self._state_files.save_epochs)
        log.producers.aborted.trim(start_offset)
        try:
            await self._env.start_moved()
        finally:
            # Even if that could not be noted: where the disk is full, this is what makes room.
            log.drop_below_start()

    def _delete(self, segment: Segment) -> None:
        logger.info(
            "deleted a segment",
            extra=fields(log=str(self._log.topic_partition), base_offset=segment.base_offset, bytes=segment.size),
        )
        self._background.start(self._remove_files(segment))

    async def _remove_files(self, segment: Segment) -> None:
        def remove() -> None:
            for suffix in SUFFIXES:
                self._env.files.remove(segment.path(suffix))

        await asyncio.get_running_loop().run_in_executor(self._env.sync_pool, remove)


def _aged(segment: Segment) -> Aged:
    """Records may carry no timestamp at all: then the file says when it was last written to."""
    newest_ms = segment.max_timestamp
    if newest_ms < 0 and segment.size:
        newest_ms = segment.file.modified_ms()
    return Aged(segment.next_offset, segment.size, newest_ms)
