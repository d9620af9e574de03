"""Getting a log's bytes to the disk without ever making the event loop wait for it.

Two duties, both done in threads:

- **Group commit.** `flush` syncs everything appended so far. Callers that ask while a sync is under way share the next
  one, so the number of syncs does not grow with the number of producers. After a failed sync nothing is known about the
  file any more (the kernel may have dropped the pages), so the log goes offline.
- **Write-back.** Bytes that pile up in the page cache faster than the disk takes them would at some point make the
  kernel stop the writer, and with it the event loop and every client. So they are handed to the disk piece by piece,
  and a log that is far behind is given no new bytes until it has caught up (`wait_for_backlog`). A log with little
  outstanding is never held back by what others write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from penstock.background_loop import shielded
from penstock.config.setting import LONG_MAX
from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.logs import fields
from penstock.storage.segmented.write_backlog import WriteBacklog

if TYPE_CHECKING:
    from penstock.storage.segmented.segment import Segment

logger = logging.getLogger(__name__)

WRITE_BACK_BYTES = 16 << 20
"""Write-back starts when a log has this much outstanding, and goes in pieces of this size."""

NEVER_HELD_BYTES = 4 << 20
"""A log with less than this outstanding may always write."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says when a write found no room, and the file is otherwise well."""


class Flusher:
    """The disk side of one log."""

    def __init__(
        self,
        name: str,
        outstanding: WriteBacklog,
        sync_pool: Executor,
        write_back_pool: Executor,
        on_failure: Callable[[StorageError], object],
    ) -> None:
        self._name = name
        self._total = outstanding
        self._sync_pool = sync_pool
        self._write_back_pool = write_back_pool
        self._on_failure = on_failure
        self._own_bytes = 0
        self._segments: list[Segment] = []
        """Segments with bytes that are not synced, oldest first."""
        self._side_jobs: list[Callable[[], None]] = []
        """Small files to write before the next sync counts as done: indexes, snapshots, epochs."""
        self._sync: asyncio.Task[None] | None = None
        self._write_back: asyncio.Task[None] | None = None
        self._has_new_jobs = False
        self._cuts = 0
        self.ahead: Flusher | None = None
        """Of a log whose bytes have to be on the disk before any of this one count."""
        self.flushed_offset = 0
        """Everything below would survive a power loss."""
        self.recovery_offset = 0
        """Like `flushed_offset`, but only as far as the small files that go with it were written too."""

    def wrote(self, segment: Segment, count: int) -> None:
        """Notes an append."""
        if not self._segments or self._segments[-1] is not segment:
            self._segments.append(segment)
        self._own_bytes += count
        self._total.bytes += count
        if self._own_bytes >= WRITE_BACK_BYTES and self._write_back is None:
            self._write_back = asyncio.get_running_loop().create_task(
                self._run_write_back(), name=f"write-back {self._name}"
            )

    def adopt(self, segment: Segment) -> None:
        """Takes over a segment that recovery could not vouch for being synced."""
        self._segments.append(segment)

    def before_next_sync(self, job: Callable[[], None]) -> None:
        self._side_jobs.append(job)
        self._has_new_jobs = True

    @property
    def is_far_ahead(self) -> bool:
        """Whether too much of what was written waits for the disk, some of it this log's."""
        return self._total.bytes > self._total.limit_bytes and self._own_bytes > NEVER_HELD_BYTES

    async def wait_for_backlog(self) -> None:
        """Returns when the log may write again."""
        while self.is_far_ahead:
            await self._total.changed()

    async def flush(self, end_offset: int) -> None:
        """Returns when everything below `end_offset`, which the caller has appended, is synced."""
        cuts = self._cuts
        while (self.flushed_offset < end_offset and self._cuts == cuts) or self._has_new_jobs:
            if self._sync is None:
                loop = asyncio.get_running_loop()
                self._sync = loop.create_task(self._run_sync(end_offset), name=f"sync {self._name}")
            await shielded(self._sync)

    def drop(self, segment: Segment) -> None:
        """Forgets a segment that is being deleted."""
        if segment in self._segments:
            self._segments.remove(segment)
            count = segment.size - segment.written_back
            segment.written_back = segment.synced_size = segment.size
            self._settle(count)

    @property
    def has_jobs(self) -> bool:
        """Whether small files are still to be written, because it was not their turn or there was no room."""
        return bool(self._side_jobs)

    def try_again(self) -> None:
        """Small files for which there was no room are written by the next flush, whatever else there is to sync."""
        self._has_new_jobs = self.has_jobs

    def cut(self, segments: Iterable[Segment], end_offset: int) -> None:
        """Forgets segments of which nothing, or only what is synced, is left; flushes that wait for more are done."""
        for segment in segments:
            self.drop(segment)
        self._cuts += 1
        self.flushed_offset = self.recovery_offset = end_offset

    async def close(self) -> None:
        """Waits for what is under way; the log has flushed before."""
        for task in (self._sync, self._write_back):
            if task is not None:
                await asyncio.wait([task])

    async def _run_sync(self, end_offset: int) -> None:
        loop = asyncio.get_running_loop()
        segments, jobs = list(self._segments), self._side_jobs
        self._side_jobs, self._has_new_jobs = [], False
        sizes = [segment.size for segment in segments]
        end_offset = max([end_offset, *(segment.next_offset for segment in segments[-1:])])
        try:
            undone = await loop.run_in_executor(self._sync_pool, self._sync_all, segments, jobs)
        except OSError as error:
            failure = StorageError(f"syncing {self._name} failed: {error}; what reached the disk is unknown")
            failure.__cause__ = error
            self._on_failure(failure)
            raise failure from error
        finally:
            self._sync = None
        for segment, size in zip(segments, sizes, strict=True):
            segment.synced_size = max(segment.synced_size, size)
            self._written_back(segment, size)
            if segment.synced_size == segment.size and segment in self._segments:
                self._segments.remove(segment)
        self.flushed_offset = max(self.flushed_offset, end_offset)
        if undone:
            self._side_jobs = undone + self._side_jobs
        else:
            self.recovery_offset = self.flushed_offset

    def _sync_all(self, segments: list[Segment], jobs: list[Callable[[], None]]) -> list[Callable[[], None]]:
        """In a thread. Gives the jobs for which there was no room; they are tried again with the next sync."""
        undone: list[Callable[[], None]] = []
        if self.ahead is not None:
            for segment in tuple(self.ahead._segments):
                segment.sync()
        for job in jobs:
            try:
                job()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if not undone:
                    logger.warning(
                        "no disk space for indexes and snapshots; will retry",
                        extra=fields(log=self._name, error=str(error)),
                    )
                undone.append(job)
        for segment in segments:
            segment.sync()
        return undone

    async def _run_write_back(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (segment := self._behind()) is not None:
                start = segment.written_back
                end = min(segment.size, start + WRITE_BACK_BYTES)
                room = await loop.run_in_executor(self._write_back_pool, self._hand_over, segment, start, end)
                self._total.limit_bytes = room
                self._written_back(segment, end)
        except OSError as error:
            # Not a broken promise yet: nothing here was promised to be on disk. The next sync will tell.
            logger.warning("write-back failed", extra=fields(log=self._name, error=str(error)))
            self._settle(self._own_bytes)
        finally:
            self._write_back = None

    def _hand_over(self, segment: Segment, start: int, end: int) -> int:
        """In a thread. Gives how much may be outstanding from now on."""
        segment.file.write_back(start, end - start)
        return self._total.room()

    def _behind(self) -> Segment | None:
        if self._own_bytes < WRITE_BACK_BYTES:
            return None
        return next((segment for segment in self._segments if segment.written_back < segment.size), None)

    def _written_back(self, segment: Segment, end: int) -> None:
        if end > segment.written_back:
            self._settle(end - segment.written_back)
            segment.written_back = end

    def _settle(self, count: int) -> None:
        count = min(count, self._own_bytes)
        self._own_bytes -= count
        self._total.remove(count)


class FlushRule:
    """When a log is flushed without being asked: after `flush.messages`, or `flush.ms` after the first of them."""

    def __init__(self, flush_soon: Callable[[], None]) -> None:
        self._flush_soon = flush_soon
        self._messages = 0
        self._timer: asyncio.TimerHandle | None = None

    def is_due(self, messages: int, config: TopicConfig) -> bool:
        """Whether with these messages the log is to be flushed now; if not, it may be in some time."""
        self._messages += messages
        if self._messages >= config.flush_messages:
            return True
        if config.flush_ms < LONG_MAX and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(config.flush_ms / 1000, self._time_is_up)
        return False

    def begin_anew(self) -> None:
        """What was appended so far is flushed, or gone."""
        self._messages = 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _time_is_up(self) -> None:
        self._timer = None
        self._flush_soon()
