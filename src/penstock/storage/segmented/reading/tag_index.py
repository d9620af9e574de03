"""What a log in segment files knows of its tags: the runs of each segment, in memory while they are used, and beside
the segment in a `.tags` file once it is closed and its bytes are safe.

The files are hints. They may be missing: the next reader of the records finds out again what they say. But what they
say must be true of the records that are there, so they are written only for bytes that no crash can take back, and a
cut removes them with the end of the log.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.logs import fields
from penstock.storage.segmented.background_tasks import BackgroundTasks
from penstock.storage.segmented.segment import TAGS, Segment
from penstock.storage.tags import TagRuns, read_runs

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog
    from penstock.storage.segmented.log_environment import LogEnvironment

logger = logging.getLogger(__name__)


class TagRoom:
    """Memory for the runs of all logs of an engine; those used longest ago are let go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[tuple[SegmentTags, int], TagRuns] = OrderedDict()
        self._sizes: dict[tuple[SegmentTags, int], int] = {}
        self.bytes = 0

    def used(self, owner: SegmentTags, base_offset: int, runs: TagRuns) -> None:
        """Runs are about to be looked at and added to."""
        if self._held:
            # What was added to the last ones is known now.
            self._count(next(reversed(self._held)))
        place = (owner, base_offset)
        self._held[place] = runs
        self._held.move_to_end(place)
        self._count(place)
        while self.bytes > self._limit and len(self._held) > 1:
            oldest, base = next(iter(self._held))
            self.forget(oldest, base)
            oldest.let_go(base)

    def forget(self, owner: SegmentTags, base_offset: int) -> None:
        place = (owner, base_offset)
        self._held.pop(place, None)
        self.bytes -= self._sizes.pop(place, 0)

    def _count(self, place: tuple[SegmentTags, int]) -> None:
        size = self._held[place].size_bytes
        self.bytes += size - self._sizes.get(place, 0)
        self._sizes[place] = size


class SegmentTags:
    """The index of one log."""

    def __init__(self, log: SegmentedLog, background: BackgroundTasks, environment: LogEnvironment) -> None:
        self._log = log
        self._background = background
        self._env = environment
        self._room = environment.tag_room
        self._held: dict[int, TagRuns] = {}
        """By the base offset of the segment."""
        self._cuts = 0

    async def at(self, offset: int) -> TagRuns:
        segments = self._log.segments
        segment = segments[max(0, bisect_right(segments, offset, key=lambda each: each.base_offset) - 1)]
        runs = self._held.get(segment.base_offset)
        if runs is None:
            runs = await self._load(segment)
        is_closed = segment is not self._log.segments[-1]
        runs.end_offset = segment.next_offset if is_closed else None
        self._room.used(self, segment.base_offset, runs)
        if len(self._held) > 1:
            self._save_all_but(segment.base_offset)
        return runs

    def let_go(self, base_offset: int) -> None:
        """Makes room."""
        self._start_saving(base_offset)
        self._held.pop(base_offset, None)

    def forget(self, base_offset: int) -> None:
        """The segment is gone."""
        self._held.pop(base_offset, None)
        self._room.forget(self, base_offset)

    def cut(self) -> None:
        """The log was cut: what readers still add to runs from before is ignored."""
        self._cuts += 1
        for base_offset in tuple(self._held):
            self.forget(base_offset)

    async def close(self) -> None:
        self._save_all_but(None)
        await self._background.wait()
        for base_offset in tuple(self._held):
            self.forget(base_offset)

    async def _load(self, segment: Segment) -> TagRuns:
        """What is stored of a segment; if that is nothing, nothing is known yet."""
        base_offset, cuts = segment.base_offset, self._cuts
        runs = TagRuns(base_offset)
        if segment is not self._log.segments[-1]:
            read, path = self._env.files.read, segment.path(TAGS)
            content = await asyncio.get_running_loop().run_in_executor(self._env.read_pool, read, path)
            if content is not None:
                try:
                    runs = read_runs(content)
                except ValueError as error:
                    logger.warning("rebuilt a tag index", extra=fields(file=str(path), reason=str(error)))
        if cuts != self._cuts or segment not in self._log.segments:
            return TagRuns(base_offset)
        return self._held.setdefault(base_offset, runs)

    def _save_all_but(self, base_offset: int | None) -> None:
        for base in tuple(self._held):
            if base != base_offset:
                self._start_saving(base)

    def _start_saving(self, base_offset: int) -> None:
        runs, log = self._held.get(base_offset), self._log
        if runs is None or runs.is_saved or log.refusal is not None:
            return
        segment = next((each for each in log.segments[:-1] if each.base_offset == base_offset), None)
        if segment is not None and segment.next_offset <= log.recovery_offset:
            self._background.start(self._save(segment, runs))

    async def _save(self, segment: Segment, runs: TagRuns) -> None:
        content, path = runs.to_bytes(), segment.path(TAGS)
        runs.is_saved = True
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._env.sync_pool, self._env.files.replace, path, content
            )
        except OSError:
            runs.is_saved = False
            raise
        if segment not in self._log.segments:
            # It was deleted meanwhile, and with it the file that was there before.
            await asyncio.get_running_loop().run_in_executor(self._env.sync_pool, self._env.files.remove, path)
