"""Compaction of segment files: passes, the swap of segments, and what a crash in the middle leaves.

The reading and rewriting is done in a thread, piece by piece; the swap itself is a few renames. `storage/compaction.py`
decides which records stay.

What cannot be read must not be compacted away. So a segment that is damaged stays as it is, and the others are
compacted around it. Their tombstones and markers stay too, however old they are: the segment may hold what they are
about. And the pass does not count: once the damage is repaired, the next one begins where the last whole one ended.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.background_loop import shielded
from penstock.errors import ApiError, Code
from penstock.logs import fields
from penstock.records.batch import BatchHeader, read_header
from penstock.storage.aborted import AbortedIndex
from penstock.storage.compaction import CompactionState, KeyTable, Rewriting, Stretch
from penstock.storage.files import Files
from penstock.storage.segmented.disk.state_files import StateFiles
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.recovery.scan import Damage, survey
from penstock.storage.segmented.segment import ABORTED, INDEX, LOG, TAGS, TIME_INDEX, Segment, segment_name

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog

logger = logging.getLogger(__name__)

STATE_FILE = "compaction.json"
_SEGMENT = re.compile(r"(\d{20})\.log")
_SWAP = re.compile(r"(\d{20})-(\d{20})\.swap")
_CLEANED = re.compile(r"(\d{20})-(\d{20})\.cleaned")


class Cleaner:
    """Runs compaction passes over one log."""

    def __init__(self, log: SegmentedLog, state_files: StateFiles, environment: LogEnvironment) -> None:
        self._log = log
        self._state_files = state_files
        self._env = environment
        self._running: asyncio.Task[bool] | None = None
        self._complaint = ""
        self._compacted_around = -1
        """Up to where the log was compacted around damage: there is nothing more to do before it has grown."""

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    async def run(self) -> bool:
        """One pass if one is due; False if not."""
        if self._running is not None:
            return False
        # A task of its own: if the waiting caller is cancelled, the pass goes on and counts as running until its end.
        self._running = asyncio.get_running_loop().create_task(
            self._pass(), name=f"compaction {self._log.topic_partition}"
        )
        self._running.add_done_callback(self._ended)
        return await shielded(self._running)

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._running = None
        self._log.drop_below_start()

    async def _pass(self) -> bool:
        loop = asyncio.get_running_loop()
        log, env = self._log, self._env
        now_ms = env.clock.now_ms()
        state = load_state(env.files, log.folder)
        segments = self._closed_segments(now_ms, state)
        stretches = [Stretch(segment.next_offset, segment.size, segment.first_timestamp) for segment in segments]
        if not state.is_due(stretches, log.config, now_ms):
            return False
        # What ended the transactions below must outlive what is made of them.
        await log.flush()
        start_offset = log.start_offset
        drop_below = state.tombstones_end(now_ms, log.config.delete_retention_ms)
        before = sum(segment.size for segment in segments)
        aborted = log.producers.aborted.spans(log.end_offset)
        table = KeyTable(env.compaction_memory_bytes, aborted)
        table.end_offset = state.cleaned
        rewriting = Rewriting(table, aborted, log.producers.last_offsets(), drop_below)
        try:
            groups = await loop.run_in_executor(env.clean_pool, self._rewrite, segments, table, rewriting, start_offset)
        except ApiError as error:
            self._complain(error)
            return await self._compact_around_damage(segments, state, start_offset)
        after = await self._swap(groups)
        await self._forget_aborted([new for _, new in groups])
        reached = table.end_offset
        new_state = state.after_pass(reached, now_ms)
        await loop.run_in_executor(env.clean_pool, env.files.replace, log.folder / STATE_FILE, new_state.to_bytes())
        logger.info(
            "log compacted",
            extra=fields(log=str(log.topic_partition), up_to=reached, bytes_before=before, bytes_after=after),
        )
        return True

    async def _compact_around_damage(self, segments: list[Segment], state: CompactionState, start_offset: int) -> bool:
        log, env = self._log, self._env
        if self._compacted_around == segments[-1].next_offset:
            return False
        aborted = log.producers.aborted.spans(log.end_offset)
        table = KeyTable(env.compaction_memory_bytes, aborted)
        rewriting = Rewriting(table, aborted, log.producers.last_offsets(), drop_below=0)
        loop = asyncio.get_running_loop()
        before = sum(segment.size for segment in segments)
        groups = await loop.run_in_executor(
            env.clean_pool, self._rewrite_sound, segments, state.cleaned, table, rewriting, start_offset
        )
        after = before - sum(segment.size for old, _ in groups for segment in old) + await self._swap(groups)
        self._compacted_around = segments[-1].next_offset
        logger.info(
            "log compacted around damage",
            extra=fields(log=str(log.topic_partition), bytes_before=before, bytes_after=after),
        )
        return bool(groups)

    async def _swap(self, groups: list[tuple[list[Segment], Segment]]) -> int:
        """Puts new segments in the place of old ones; gives the size of the new."""
        loop = asyncio.get_running_loop()
        log, env = self._log, self._env
        after = 0
        for old, new in groups:
            if len(old) > 1:
                # The list of the first must name the transactions of all before it stands for all.
                job = self._state_files.aborted_job([new], log.producers.aborted)
                await loop.run_in_executor(env.clean_pool, job)
            await loop.run_in_executor(env.clean_pool, _swap_files, env.files, log.folder, old, new)
            log.replace_segments(old, [new])
            for segment in old[1:]:
                log.tags.forget(segment.base_offset)
            after += new.size
        return after

    async def _forget_aborted(self, rewritten: list[Segment]) -> None:
        """Nothing is left of the aborted transactions that ended in these segments: their lists are empty from now on.

        On disk first: a later pass takes their markers away because they are no longer in memory.
        """
        aborted = self._log.producers.aborted
        if rewritten and aborted.ended_below(rewritten[-1].next_offset):
            job = self._state_files.aborted_job(rewritten, AbortedIndex())
            await asyncio.get_running_loop().run_in_executor(self._env.clean_pool, job)
            aborted.trim(rewritten[-1].next_offset)

    def _complain(self, error: ApiError) -> None:
        """Once for each reason: the next pass will stop at the same batch."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            logger.error(
                "compaction skips a segment with an unreadable batch",
                extra=fields(log=str(self._log.topic_partition), error=str(error)),
            )

    def _closed_segments(self, now_ms: int, state: CompactionState) -> list[Segment]:
        """Segments that a pass may touch: all but the active one, none with records younger than the lag asked, and
        none with records of which it is not decided whether they count, or whether they stay.
        """
        log = self._log
        config = log.config
        active = log.segments[-1]
        oldest_dirty = active.first_timestamp
        if (
            active.size
            and active.base_offset >= state.cleaned
            and oldest_dirty >= 0
            and now_ms - oldest_dirty > config.max_compaction_lag_ms
        ):
            log.roll()
        first_unstable = log.first_unstable_offset
        segments = []
        for segment in log.segments[:-1]:
            if first_unstable is not None and segment.next_offset > first_unstable:
                break
            if segment.next_offset > log.settled_end:
                break
            if config.min_compaction_lag_ms and segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
                break
            segments.append(segment)
        return segments

    def _rewrite(
        self, segments: list[Segment], table: KeyTable, rewriting: Rewriting, start_offset: int
    ) -> list[tuple[list[Segment], Segment]]:
        """In a thread: fills the table; gives for each group of old segments the one that replaces it."""
        cleaned = table.end_offset
        for segment in segments:
            if segment.next_offset > cleaned and not _note_keys(_all_batches(segment), segment, table, cleaned):
                break
        return self._write_groups(self._groups(segments), rewriting, start_offset)

    def _rewrite_sound(
        self, segments: list[Segment], cleaned: int, table: KeyTable, rewriting: Rewriting, start_offset: int
    ) -> list[tuple[list[Segment], Segment]]:
        """Like `_rewrite`, but for segments that are damaged: of those only the keys that can be read count."""
        for segment in segments:
            if segment.next_offset > cleaned and not _note_keys(_sound_batches(segment), segment, table, cleaned):
                break
        groups: list[list[Segment]] = []
        for is_sound, run in groupby(segments, _is_sound):
            if is_sound:
                groups += self._groups(list(run))
        return self._write_groups(groups, rewriting, start_offset)

    def _write_groups(
        self, groups: list[list[Segment]], rewriting: Rewriting, start_offset: int
    ) -> list[tuple[list[Segment], Segment]]:
        files, folder = self._env.files, self._log.folder
        try:
            return [(group, self._write_group(group, rewriting, start_offset)) for group in groups]
        except BaseException:
            for group in groups:
                files.remove(folder / _span_name(group, ".cleaned"))
            raise

    def _groups(self, segments: list[Segment]) -> list[list[Segment]]:
        """Neighbours that fit into one segment together are merged."""
        groups: list[list[Segment]] = []
        size = 0
        for segment in segments:
            span = segment.next_offset - groups[-1][0].base_offset if groups else 0
            if groups and size + segment.size <= self._log.config.segment_bytes and span < 1 << 31:
                groups[-1].append(segment)
                size += segment.size
            else:
                groups.append([segment])
                size = segment.size
        return groups

    def _write_group(self, group: list[Segment], rewriting: Rewriting, start_offset: int) -> Segment:
        files, folder = self._env.files, self._log.folder
        path = folder / _span_name(group, ".cleaned")
        out = files.create(path)
        new = Segment(folder, group[0].base_offset, self._env.open_segments)
        new.forget_content()
        for segment in group:
            for header, batch in _all_batches(segment):
                if header.last_offset < start_offset:
                    continue
                kept = rewriting.rewrite(batch, header)
                if kept is None:
                    continue
                position = new.size
                out.write(position, kept)
                new.size += len(kept)
                new.note(read_header(kept), header.base_offset, position, self._log.config.index_interval_bytes)
        out.sync()
        new.next_offset = group[-1].next_offset
        new.synced_size = new.written_back = new.hot_from = new.size
        if new.first_timestamp < 0:
            new.first_timestamp = group[0].first_timestamp
        return new


def load_state(files: Files, folder: Path) -> CompactionState:
    """How far compaction has come; a missing or unreadable note means that it starts over, which is harmless."""
    content = files.read(folder / STATE_FILE)
    if content is None:
        return CompactionState()
    try:
        return CompactionState.from_bytes(content)
    except ValueError as error:
        logger.warning("restarting a compaction", extra=fields(folder=folder.name, reason=str(error)))
        return CompactionState()


def _all_batches(segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Every batch of a segment, or an error: what cannot be read must not be compacted away."""
    for found in survey(segment.file, 0, segment.size, segment.base_offset - 1, segment.next_offset):
        if isinstance(found, Damage):
            raise ApiError(Code.CORRUPT_MESSAGE, f"{segment.path().name} is damaged at position {found.start}")
        yield found.header, found.batch


def _sound_batches(segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    for found in survey(segment.file, 0, segment.size, segment.base_offset - 1, segment.next_offset):
        if not isinstance(found, Damage):
            yield found.header, found.batch


def _is_sound(segment: Segment) -> bool:
    found = survey(segment.file, 0, segment.size, segment.base_offset - 1, segment.next_offset)
    return not any(isinstance(each, Damage) for each in found)


def _note_keys(
    batches: Iterator[tuple[BatchHeader, memoryview]], segment: Segment, table: KeyTable, from_offset: int
) -> bool:
    for header, batch in batches:
        if header.last_offset >= from_offset and not table.add(batch, header):
            return False
    table.end_offset = max(table.end_offset, segment.next_offset)
    return True


def _span_name(group: list[Segment], suffix: str) -> str:
    return f"{segment_name(group[0].base_offset)}-{segment_name(group[-1].next_offset)}{suffix}"


def _swap_files(files: Files, folder: Path, old: list[Segment], new: Segment) -> None:
    """From the rename to `.swap` on, the new segment counts, whatever happens."""
    for segment in old:
        # Readers go on with the old content until the log switches; by then its name may stand for the new one.
        segment.pin()
    swap = folder / _span_name(old, ".swap")
    files.rename(folder / _span_name(old, ".cleaned"), swap)
    files.sync_folder(folder)
    _finish_swap(files, folder, swap, [segment.base_offset for segment in old])
    new.save_index()


def finish_swaps(files: Files, folder: Path, names: Collection[str]) -> bool:
    """After a crash: drops what was not finished, finishes what was decided; whether there was anything to do."""
    unfinished = [name for name in names if name.endswith((".cleaned", ".swap"))]
    if not unfinished:
        return False
    bases = [int(found[1]) for found in map(_SEGMENT.fullmatch, names) if found]
    for name in sorted(unfinished):
        if _CLEANED.fullmatch(name):
            files.remove(folder / name)
        elif found := _SWAP.fullmatch(name):
            base, end = int(found[1]), int(found[2])
            logger.info("finished an interrupted compaction", extra=fields(folder=folder.name, swap=name))
            _finish_swap(files, folder, folder / name, [b for b in bases if b == base or base <= b < end])
    return True


def _finish_swap(files: Files, folder: Path, swap: Path, replaced: list[int]) -> None:
    base_offset = int(swap.name[:20])
    for base in replaced:
        for suffix in (LOG, INDEX, TIME_INDEX, ABORTED, TAGS):
            if base != base_offset or suffix in (INDEX, TIME_INDEX):
                files.remove(folder / (segment_name(base) + suffix))
    # What is replaced must be gone for good before the new segment looks like any other.
    files.sync_folder(folder)
    files.rename(swap, folder / (segment_name(base_offset) + LOG))
    files.sync_folder(folder)
