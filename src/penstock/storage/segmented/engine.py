"""All segmented logs of a broker: opening them after a stop or a crash, checkpoints, creation and removal.

One folder a partition below `logs/`, named TOPIC-PARTITION. A folder that is being removed is renamed first, so that a
crash in the middle leaves nothing that looks like a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from penstock.clock import Clock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, DiskFullError, StorageError
from penstock.ids import TopicId, TopicPartition, companion_of, is_companion
from penstock.logs import fields
from penstock.storage.companions import companion_config, reconcile
from penstock.storage.contract import Engine, Log, StrayLog
from penstock.storage.files import Files
from penstock.storage.segmented.cleaning.truncation import forget_cut
from penstock.storage.segmented.disk import stray_folders
from penstock.storage.segmented.disk.first_files import FolderSync
from penstock.storage.segmented.disk.identity import read_identity
from penstock.storage.segmented.disk.open_segments import OpenSegments
from penstock.storage.segmented.disk.stray_folders import REMOVED, STRAY
from penstock.storage.segmented.flusher import NO_ROOM
from penstock.storage.segmented.log import SegmentedLog
from penstock.storage.segmented.log_environment import LogEnvironment
from penstock.storage.segmented.reading.tag_index import TagRoom
from penstock.storage.segmented.recovery import checkpoint, log_recovery
from penstock.storage.segmented.recovery.checkpoint import Checkpoint, LogPoint
from penstock.storage.segmented.segment import Segment
from penstock.storage.segmented.write_backlog import WriteBacklog
from penstock.yielding import yielding

logger = logging.getLogger(__name__)

_TOGETHER = 64
"""So many logs are closed, synced or removed at the same time."""
_POINTS_PER_TURN = 1000
"""Of so many logs the checkpoint takes note before others have their turn."""

T = TypeVar("T")


class _Found(NamedTuple):
    """What a start finds."""

    saved: Checkpoint
    wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]
    present: Set[str]
    """The names of all folders, those that were set aside too."""
    owned: Mapping[str, bool]
    """The folders of wanted logs, and whether they say whose they are."""


class SegmentedEngine(Engine):
    """The default engine: a write-ahead log in segment files."""

    def __init__(
        self, folder: Path, settings: LogSettings, limits: Limits, clock: Clock, files: Files | None = None
    ) -> None:
        self._folder = folder
        self._files = files or Files()
        self._checkpoint_s = settings.checkpoint_ms / 1000
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._left: set[str] = set()
        """Folders that no open log has: those of logs that are offline, or could not be removed."""
        self._pools = (
            sync := ThreadPoolExecutor(settings.flush_threads, "sync"),
            write_back := ThreadPoolExecutor(settings.flush_threads, "write-back"),
            read := ThreadPoolExecutor(settings.read_threads, "read"),
            clean := ThreadPoolExecutor(1, "clean"),
        )
        self._work = sync
        self.outstanding = WriteBacklog(settings.unflushed_bytes)
        self.open_segments = OpenSegments(self._files, limits.open_files)
        self.open_segments.sync = self._sync_segments
        self._environment = LogEnvironment(
            files=self._files,
            logs_folder=FolderSync(self._files, folder, sync),
            open_segments=self.open_segments,
            outstanding=self.outstanding,
            sync_pool=sync,
            write_back_pool=write_back,
            read_pool=read,
            clean_pool=clean,
            clock=clock,
            max_producers=limits.producers_per_partition,
            producer_expiry_ms=settings.producer_expiry_ms,
            compaction_memory_bytes=settings.compaction_memory_bytes,
            recovery_bytes=settings.recovery_bytes,
            tag_room=TagRoom(settings.tag_index_bytes),
            start_moved=self._checkpoint_soon,
        )
        self._due = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait until the next checkpoint is on disk."""
        self._saving = asyncio.Lock()
        self._offline: dict[str, LogPoint] = {}
        """What the checkpoint said of logs that could not be brought back: it must be there when they are repaired."""
        self._keeper: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._closing = False
        self.was_closed_cleanly = False
        """Whether all that was ever appended is on the disk."""

    @property
    def logs(self) -> Mapping[TopicPartition, SegmentedLog]:
        return MappingProxyType(self._logs)

    async def open(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> None:
        loop = asyncio.get_running_loop()
        around = await loop.run_in_executor(self._work, self._look_around, wanted)
        recovering = (
            loop.run_in_executor(self._work, self._recover, around, some)
            for some in _in_parts(list(around.wanted), _TOGETHER)
        )
        for recovered in await asyncio.gather(*recovering):
            self._logs.update(recovered)
        # A log that is cut waits for a checkpoint.
        self._keeper = loop.create_task(self._keep_checkpoint(), name="checkpoint")
        for at in wanted:
            await self._make_pairs_whole(at)
        for log in self._logs.values():
            if log.has_files and log.visible_end < log.end_offset:
                await log.flush()
        try:
            await self._save(clean=False)
        except OSError as error:
            raise _save_error(error, f"cannot write to {self._folder}, so the broker does not start") from error
        await loop.run_in_executor(self._work, self._forget_cuts, list(self._logs.values()))
        self._is_open = True

    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        log = self._new_log(at, topic_id, config)
        if str(at) in self._left:
            await asyncio.get_running_loop().run_in_executor(self._work, self._set_aside_namesake, at, topic_id)
        if str(at) in self._left or is_companion(at):
            # Records that may be there must not wait for the first append to be found; a companion's folder has more
            # in it than the log.
            await log.prepare_write()
            self._left.discard(str(at))
        self._logs[at] = log
        self._offline.pop(str(at), None)
        return log

    async def delete(self, *logs: TopicPartition) -> None:
        stored: list[tuple[Path, TopicId]] = []
        for some in _in_parts(logs, _TOGETHER):
            # Only a few at a time: letting go of what a log is in memory takes its time too.
            removed = [self._logs.pop(at) for at in some]
            await self._close_all(removed, is_removed=True)
            stored += [(log.folder, log.topic_id) for log in removed if log.has_files]
        if not stored:
            return
        self._left.update(folder.name for folder, _ in stored)
        loop = asyncio.get_running_loop()
        for these in _in_parts(stored, _TOGETHER):
            await loop.run_in_executor(self._work, self._remove, these)
        # A log of the same name may follow at once: what is noted of this one must not be taken for it after a crash.
        await self._save(clean=False)

    async def _close_all(self, logs: Sequence[SegmentedLog], *, is_removed: bool = False) -> bool:
        """Whether all were closed as they should be."""
        closed = True
        for some in _in_parts(logs, _TOGETHER):
            # Those of which nothing is on disk, and nothing on its way there, need no task of their own.
            busy = [log for log in some if not log.is_only_in_memory]
            results = await asyncio.gather(*(log.close(is_removed=is_removed) for log in busy), return_exceptions=True)
            for log, result in zip(busy, results, strict=True):
                if isinstance(result, BaseException):
                    closed = False
                    logger.error(
                        "could not close a log cleanly", extra=fields(log=str(log.topic_partition), error=str(result))
                    )
            await asyncio.sleep(0)
        return closed

    @property
    def open_files(self) -> int:
        return len(self.open_segments)

    @property
    def unwritten_bytes(self) -> int:
        return self.outstanding.bytes

    async def find_strays(self) -> list[StrayLog]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._work, stray_folders.find, self._files, self._folder)

    async def discard(self, stray: StrayLog) -> None:
        folder = self._folder / stray.name
        aside = stray_folders.aside_of(folder, REMOVED)
        await asyncio.get_running_loop().run_in_executor(self._work, stray_folders.remove, self._files, folder, aside)

    async def close(self) -> None:
        self._closing = True
        if self._keeper is not None:
            self._due.set()
            await self._keeper
        if self._waiting:
            await self._try_to_save()
        clean = await self._close_all(list(self._logs.values())) and all(
            log.failure is None and log.recovery_offset == log.end_offset for log in self._logs.values()
        )
        if self._is_open:
            try:
                await self._save(clean=clean)
                self.was_closed_cleanly = clean
            except OSError as error:
                logger.error("could not save the checkpoint", extra=fields(error=str(error)))
        for pool in self._pools:
            pool.shutdown()
        self._logs.clear()

    def _path(self, at: TopicPartition) -> Path:
        return self._folder / str(at)

    def _look_around(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> _Found:
        """In a thread: what is there, after what the broker did not ask for was put aside."""
        files = self._files
        files.make_folder(self._folder)
        files.sync_folder(self._folder.parent)
        saved = checkpoint.load(files, self._folder)
        present = set()
        for name in files.folders_in(self._folder):
            if name.endswith(REMOVED):
                files.remove_folder(self._folder / name)
            else:
                present.add(name)
        beside = {companion_of(at): (topic_id, companion_config(config)) for at, (topic_id, config) in wanted.items()}
        wanted = {**wanted, **{at: found for at, found in beside.items() if str(at) in present}}
        return _Found(saved, wanted, present, self._set_strays_aside(present, wanted))

    def _recover(self, found: _Found, ats: Sequence[TopicPartition]) -> dict[TopicPartition, SegmentedLog]:
        """In a thread."""
        logs: dict[TopicPartition, SegmentedLog] = {}
        for at in ats:
            topic_id, config = found.wanted[at]
            point = found.saved.logs.get(str(at))
            owned = found.owned.get(str(at))
            try:
                if owned is None:
                    self._check_absent(at, None if str(at) in found.present else point)
                    logs[at] = self._new_log(at, topic_id, config)
                    continue
                logs[at] = log_recovery.recover(
                    at,
                    topic_id,
                    self._path(at),
                    config,
                    self._environment,
                    point,
                    found.saved.clean,
                    is_identified=owned,
                )
            except (OSError, StorageError) as error:
                logger.critical("log is offline", extra=fields(log=str(at), reason=str(error)))
                self._left.add(str(at))
                if point is not None:
                    # It was not recovered this time: after a clean stop it still counts as far as it did before.
                    end = point.end if found.saved.clean else point.recovery
                    self._offline[str(at)] = LogPoint(point.start, end, end, point.high)
        return logs

    def _check_absent(self, at: TopicPartition, point: LogPoint | None) -> None:
        """A log without a folder has no records, as far as we know; StorageError if something is in its place."""
        if self._files.exists(self._path(at)):
            raise StorageError(f"{self._path(at)} is not a folder")
        if point is not None and point.end > point.start:
            logger.critical(
                "the folder of a log is missing: its records are lost, and the log starts empty",
                extra=fields(log=str(at), first_lost=point.start, last_lost=point.end - 1),
            )

    async def _make_pairs_whole(self, at: TopicPartition) -> None:
        main, companion = self._logs.get(at), self._logs.get(companion_of(at))
        if main is None or companion is None:
            return
        try:
            await reconcile(main, companion, main.recovery_offset)
        except (OSError, StorageError, ApiError) as error:
            main.fail(StorageError(f"{at} and its companion cannot be reconciled: {error}"))

    def _forget_cuts(self, logs: list[SegmentedLog]) -> None:
        for log in logs:
            if log.has_files:
                forget_cut(self._files, log.folder)

    def _set_strays_aside(
        self, present: set[str], wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]
    ) -> dict[str, bool]:
        """Folders of topics that no longer exist, or were made anew, must not be taken for the topic of today. Gives
        the others by name: whether they say whose they are. Those that do not are left to the recovery.
        """
        ids = {str(at): topic_id for at, (topic_id, _) in wanted.items()}
        owned: dict[str, bool] = {}
        for name in sorted(present):
            if name.endswith((STRAY, ".new")):
                continue
            folder = self._folder / name
            owner = read_identity(self._files, folder)
            if name in ids and (owner is None or owner.topic_id == ids[name]):
                owned[name] = owner is not None
            else:
                stray_folders.set_aside(self._files, folder, owner)
        self._files.sync_folder(self._folder)
        return owned

    def _new_log(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> SegmentedLog:
        return log_recovery.new_log(at, topic_id, self._path(at), config, self._environment)

    def _set_aside_namesake(self, at: TopicPartition, topic_id: TopicId) -> None:
        folder = self._path(at)
        owner = read_identity(self._files, folder)
        if owner is not None and owner.topic_id != topic_id:
            stray_folders.set_aside(self._files, folder, owner)

    def _remove(self, folders: Sequence[tuple[Path, TopicId]]) -> None:
        """In a thread. What cannot be removed does not keep the others."""
        asides = []
        for folder, topic_id in folders:
            aside = stray_folders.aside_of(folder, f".{topic_id.hex}{REMOVED}")
            try:
                self._files.rename(folder, aside)
            except OSError as error:
                logger.error("could not delete a log", extra=fields(log=folder.name, error=str(error)))
                continue
            self._left.discard(folder.name)
            asides.append(aside)
        self._files.sync_folder(self._folder)
        for aside in asides:
            try:
                self._files.remove_folder(aside)
            except OSError as error:
                # The next start tries again.
                logger.error("could not delete a folder", extra=fields(folder=aside.name, error=str(error)))

    def _checkpoint_soon(self) -> asyncio.Future[None]:
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(saved)
        self._due.set()
        if self._closing and self._keeper is not None and self._keeper.done():
            # A log that is brought to its end needs one more.
            late = asyncio.get_running_loop().create_task(self._try_to_save(), name="last checkpoint")
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        return saved

    async def _keep_checkpoint(self) -> None:
        """Saves the checkpoint when a start has moved, and every so often after syncing what has grown."""
        loop = asyncio.get_running_loop()
        next_sync = loop.time() + self._checkpoint_s
        while not self._closing:
            try:
                async with asyncio.timeout(max(0, next_sync - loop.time())):
                    await self._due.wait()
            except TimeoutError:
                next_sync = loop.time() + self._checkpoint_s
                await self.checkpoint()
            else:
                self._due.clear()
                await self._try_to_save()

    async def checkpoint(self) -> None:
        """Syncs what has grown, and notes how far each log is safely on disk."""
        await self._sync_all()
        await self._try_to_save()

    async def _try_to_save(self) -> None:
        try:
            await self._save(clean=False)
        except OSError as error:
            logger.error("could not save the checkpoint", extra=fields(error=str(error)))

    async def _sync_all(self) -> None:
        grown: list[SegmentedLog] = []
        async for log in yielding(list(self._logs.values()), _POINTS_PER_TURN):
            if not log.has_files:
                continue
            log.cool()
            if log.failure is None and log.recovery_offset < log.end_offset:
                grown.append(log)
        for some in _in_parts(grown, _TOGETHER):
            # What goes wrong is said where it happens; the other logs go on.
            await asyncio.gather(*(log.flush() for log in some), return_exceptions=True)

    async def _sync_segments(self, segments: Sequence[Segment]) -> None:
        """Syncs the logs that these segments belong to."""
        names = {segment.folder.name for segment in segments}
        logs = [log for name in names if (log := self._logs.get(TopicPartition.parse(name))) is not None]
        # What goes wrong is said where it happens, and takes its log offline.
        await asyncio.gather(*(log.flush() for log in logs), return_exceptions=True)

    async def _save(self, *, clean: bool) -> None:
        loop = asyncio.get_running_loop()
        async with self._saving:
            waiting, self._waiting = self._waiting, []
            points = dict(self._offline)
            async for at, log in yielding(list(self._logs.items()), _POINTS_PER_TURN):
                # Of a log without records there is nothing to say that is not true of one that is not mentioned.
                if log.end_offset:
                    high = log.saved_high_watermark
                    points[str(at)] = LogPoint(log.start_offset, log.recovery_offset, log.end_offset, high)
            content = Checkpoint(clean, points)
            try:
                await loop.run_in_executor(self._work, checkpoint.save, self._files, self._folder, content)
            except OSError as error:
                _tell(waiting, _save_error(error, "the checkpoint was not saved"))
                raise
            _tell(waiting, None)


def _in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _save_error(error: OSError, what: str) -> StorageError:
    kind = DiskFullError if error.errno in NO_ROOM else StorageError
    return kind(f"{what}: {error}")


def _tell(waiting: list[asyncio.Future[None]], failure: StorageError | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(None)
