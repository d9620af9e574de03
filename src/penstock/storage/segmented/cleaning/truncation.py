"""Dropping the end of a log, or all of it: the steps, in an order that survives a crash at any of them.

`docs/formats/log.md` says what `cut.json` is for and why the steps come in this order. What is done to the files is
decided once, written down, and then carried out by the cut itself or, after a crash, by the recovery.
"""

from __future__ import annotations

import asyncio
import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.background_loop import shielded
from penstock.errors import DiskFullError, StorageError
from penstock.logs import fields
from penstock.storage.epochs import EpochHistory
from penstock.storage.files import Files
from penstock.storage.producers import ProducerState
from penstock.storage.segmented.background_tasks import BackgroundTasks
from penstock.storage.segmented.cleaning.cleaner import STATE_FILE, Cleaner, load_state
from penstock.storage.segmented.disk.state_files import EPOCHS_FILE
from penstock.storage.segmented.flusher import NO_ROOM, Flusher
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.recovery.checkpoint import LogPoint
from penstock.storage.segmented.recovery.state_recovery import producers_at
from penstock.storage.segmented.segment import (
    ABORTED,
    INDEX,
    LOG,
    PRODUCERS,
    SUFFIXES,
    TAGS,
    TIME_INDEX,
    Segment,
    segment_name,
)

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog

logger = logging.getLogger(__name__)

CUT_FILE = "cut.json"
_FORMAT = 1
_TRY_AGAIN_S = 0.5

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is to be left of a log."""

    start: int
    end: int
    segment: int
    """Base offset of the last segment that is left."""
    position: int
    """Where that segment ends."""
    fresh: bool
    """Nothing else is left."""

    def to_bytes(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Cut:
        """ValueError if the content is no cut."""
        try:
            data = json.loads(content)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']} is not known here")
            numbers = {name: int(data[name]) for name in ("start", "end", "segment", "position")}
            return cls(**numbers, fresh=data["fresh"] is True)
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a cut: {error!r}") from error

    def after(self, point: LogPoint) -> LogPoint:
        """What the checkpoint should say, if it says this."""
        if self.fresh:
            return LogPoint(self.start, self.end, self.end, point.high)
        return LogPoint(min(point.start, self.end), min(point.recovery, self.end), self.end, point.high)


def load_cut(files: Files, folder: Path) -> Cut | None:
    """The cut that is under way in a folder; StorageError if its file cannot be read."""
    content = files.read(folder / CUT_FILE)
    try:
        return None if content is None else Cut.from_bytes(content)
    except ValueError as error:
        raise StorageError(f"{folder.name} was being cut, and {CUT_FILE} is unreadable: {error}") from error


def carry_out(files: Files, folder: Path, cut: Cut) -> None:
    """Makes the files what the cut says, however much of that was done before."""
    for name in files.list_folder(folder):
        base, suffix = name[:20], name[20:]
        if suffix not in SUFFIXES or not base.isdecimal():
            continue
        if suffix == PRODUCERS:
            is_gone = cut.fresh or int(base) > cut.end
        elif int(base) == cut.segment:
            is_gone = suffix in (INDEX, TIME_INDEX, TAGS) or (cut.fresh and suffix == ABORTED)
        else:
            is_gone = cut.fresh or int(base) > cut.segment
        if is_gone:
            files.remove(folder / name)
    path = folder / (segment_name(cut.segment) + LOG)
    file = files.open(path) if files.exists(path) else files.create(path)
    if file.size() > cut.position:
        file.truncate(cut.position)
    file.sync()
    _cut_small_files(files, folder, cut)
    files.sync_folder(folder)


def _cut_small_files(files: Files, folder: Path, cut: Cut) -> None:
    state = load_state(files, folder)
    if state != state.cut(cut.end):
        files.replace(folder / STATE_FILE, state.cut(cut.end).to_bytes())
    content = files.read(folder / EPOCHS_FILE)
    try:
        epochs = EpochHistory.from_text((content or b"").decode())
    except ValueError:
        return  # the next start makes them anew
    epochs.trim(cut.start)
    if epochs.cut(0 if cut.fresh else cut.end):
        files.replace(folder / EPOCHS_FILE, epochs.to_text().encode())


def forget_cut(files: Files, folder: Path) -> None:
    """The checkpoint on disk is that of after: the cut is over, and what is appended from now on stays."""
    if files.exists(folder / CUT_FILE):
        files.remove(folder / CUT_FILE)
        files.sync_folder(folder)


def _lacks_room(error: Exception) -> bool:
    return isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in NO_ROOM)


class Cutter:
    """Cuts one log."""

    def __init__(
        self,
        log: SegmentedLog,
        cleaner: Cleaner,
        flusher: Flusher,
        background: BackgroundTasks,
        environment: LogEnvironment,
    ) -> None:
        self._log = log
        self._cleaner = cleaner
        self._flusher = flusher
        self._background = background
        self._env = environment
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.is_busy = False

    async def cut(self, end_offset: int) -> None:
        await self._run(self._cut(end_offset))

    async def begin_at(self, start_offset: int, base_offset: int) -> None:
        """Drops everything; the log starts and ends at `start_offset`, in a segment that begins at `base_offset`."""
        await self._run(self._begin_at(start_offset, base_offset))

    async def close(self) -> None:
        self._is_closing = True
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, work: Coroutine[None, None, None]) -> None:
        # A task of its own: if the waiting caller is cancelled, the cut is still brought to its end.
        task = asyncio.get_running_loop().create_task(self._alone(work), name=f"cut {self._log.topic_partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await shielded(task)

    async def _alone(self, work: Coroutine[None, None, None]) -> None:
        log = self._log
        async with log.moving:
            self.is_busy = True
            try:
                await work
            finally:
                self.is_busy = False
                log.refusal = log.failure
                log.drop_below_start()

    async def _stand_still(self) -> None:
        """Returns when everything is on disk and nothing is under way; nothing is appended until the end of the cut."""
        log = self._log
        if log.failure is not None:
            raise log.failure
        log.refusal = StorageError(f"{log.topic_partition} is being cut")
        await self._cleaner.close()
        await self._background.wait()
        self._flusher.try_again()
        await log.flush()
        if self._flusher.has_jobs:
            raise DiskFullError(f"no room on the disk to cut {log.topic_partition}")

    async def _cut(self, end_offset: int) -> None:
        log, env = self._log, self._env
        await self._stand_still()
        if end_offset >= log.end_offset:
            return
        if end_offset < log.start_offset:
            await self._drop_all(end_offset, end_offset)
            return
        segments = list(log.segments)
        at = bisect_right(segments, end_offset, key=lambda segment: segment.base_offset) - 1
        last = await self._in_thread(lambda: segments[at].head(end_offset))
        end = last.next_offset
        if end < log.start_offset:
            # The start lies in the middle of the batch that goes.
            await self._drop_all(log.start_offset, log.start_offset)
            return
        now_ms, max_producers = env.clock.now_ms(), env.max_producers
        producers = await self._in_thread(
            lambda: producers_at(env.files, log.folder, segments[: at + 1], end, max_producers, now_ms)
        )
        cut = Cut(start=log.start_offset, end=end, segment=last.base_offset, position=last.size, fresh=False)
        await self._perform(cut, [*segments[:at], last], producers)

    async def _begin_at(self, start_offset: int, base_offset: int) -> None:
        await self._stand_still()
        await self._drop_all(start_offset, base_offset)

    async def _drop_all(self, start_offset: int, base_offset: int) -> None:
        cut = Cut(start=start_offset, end=start_offset, segment=base_offset, position=0, fresh=True)
        segment = Segment(self._log.folder, base_offset, self._env.open_segments)
        segment.forget_content()
        segment.next_offset = start_offset
        segment.entry_synced = True
        await self._perform(cut, [segment], ProducerState(self._env.max_producers))

    async def _perform(self, cut: Cut, segments: list[Segment], producers: ProducerState) -> None:
        log, files = self._log, self._env.files
        before = log.end_offset
        try:
            await self._on_disk(lambda: files.replace(log.folder / CUT_FILE, cut.to_bytes()))
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFullError(f"no room on the disk to cut {log.topic_partition}: {error.strerror}") from error
            raise log.fail(StorageError(f"cutting {log.topic_partition} failed: {error}")) from error
        self._go_back(cut, segments, producers)
        await self._complete(cut)
        # A log that only begins further on loses nothing.
        logger.log(
            logging.WARNING if cut.end < before else logging.INFO,
            "log cut",
            extra=fields(log=str(log.topic_partition), start=cut.start, end=cut.end, end_before=before),
        )

    async def _complete(self, cut: Cut) -> None:
        """Makes the disk what the cut says. Without room for that it waits: all of it can be done again."""
        log, files = self._log, self._env.files
        was_told = False
        while True:
            try:
                await self._on_disk(lambda: carry_out(files, log.folder, cut))
                await self._env.start_moved()
                await self._on_disk(lambda: forget_cut(files, log.folder))
                return
            except (OSError, StorageError) as error:
                if not _lacks_room(error) or self._is_closing:
                    raise log.fail(StorageError(f"cutting {log.topic_partition} was not completed: {error}")) from error
                if not was_told:
                    logger.error(
                        "no disk space to complete a cut, will retry",
                        extra=fields(log=str(log.topic_partition), error=str(error)),
                    )
                was_told = True
            await asyncio.sleep(_TRY_AGAIN_S)

    def _go_back(self, cut: Cut, segments: list[Segment], producers: ProducerState) -> None:
        """What is in memory becomes what the cut leaves; a log that begins anew knows nothing."""
        log, known_up_to = self._log, 0 if cut.fresh else cut.end
        gone = log.shorten(segments, cut.start, cut.end)
        log.tags.cut()
        log.epochs.cut(known_up_to)
        log.producers.go_back(producers, known_up_to)
        self._flusher.cut(gone, cut.end)
        for segment in gone:
            segment.retire()

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._env.read_pool, work)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._env.sync_pool, work)
