"""All segmented logs of a broker: opening them after a stop or a crash, checkpoints, creation and removal.

One folder a partition below `logs/`, named TOPIC-PARTITION. A folder that is being removed is renamed first, so that a
crash in the middle leaves nothing that looks like a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from penstock.clock import Clock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, StorageError
from penstock.ids import TopicId, TopicPartition, companion_of
from penstock.logs import fields
from penstock.storage.companions import companion_config, reconcile
from penstock.storage.contract import Engine, Log
from penstock.storage.segmented import checkpoint, recovery, strays
from penstock.storage.segmented.checkpoint import Checkpoint, LogPoint
from penstock.storage.segmented.cutting import forget_cut
from penstock.storage.segmented.files import Files
from penstock.storage.segmented.identity import read_identity
from penstock.storage.segmented.log import SegmentedLog
from penstock.storage.segmented.open_segments import OpenSegments
from penstock.storage.segmented.outstanding import Outstanding
from penstock.storage.segmented.strays import REMOVED, STRAY, Stray
from penstock.storage.segmented.surroundings import Surroundings
from penstock.storage.segmented.tagindex import TagRoom

logger = logging.getLogger(__name__)


class SegmentedEngine(Engine):
    """The default engine: a write-ahead log in segment files."""

    def __init__(
        self, folder: Path, settings: LogSettings, limits: Limits, clock: Clock, files: Files | None = None
    ) -> None:
        self._folder = folder
        self._files = files or Files()
        self._checkpoint_s = settings.checkpoint_ms / 1000
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._pools = (
            sync := ThreadPoolExecutor(settings.flush_threads, "sync"),
            write_back := ThreadPoolExecutor(settings.flush_threads, "write-back"),
            read := ThreadPoolExecutor(settings.read_threads, "read"),
            clean := ThreadPoolExecutor(1, "clean"),
        )
        self._work = sync
        self.outstanding = Outstanding(settings.unflushed_bytes)
        self.open_segments = OpenSegments(self._files, limits.open_files)
        self._surroundings = Surroundings(
            files=self._files,
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
        """Those who want to know when the next checkpoint is on disk."""
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
    def logs(self) -> Mapping[TopicPartition, Log]:
        return MappingProxyType(self._logs)

    async def open(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._work, self._recover_all, wanted)
        self._logs.update(found)
        # A log that is cut waits for a checkpoint.
        self._keeper = loop.create_task(self._keep_checkpoint(), name="checkpoint")
        for at in wanted:
            await self._make_pairs_whole(at)
        for log in self._logs.values():
            if log.visible_end < log.end_offset:
                await log.flush()
        await self._save(clean=False)
        await loop.run_in_executor(self._work, self._forget_cuts, list(found.values()))
        self._is_open = True

    async def create(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> Log:
        loop = asyncio.get_running_loop()
        log = await loop.run_in_executor(self._work, self._create, at, topic_id, config)
        self._logs[at] = log
        self._offline.pop(str(at), None)
        return log

    async def delete(self, at: TopicPartition) -> None:
        loop = asyncio.get_running_loop()
        log = self._logs.pop(at)
        aside = strays.aside_of(log.folder, f".{log.topic_id.hex}{REMOVED}")
        await log.close(is_removed=True)
        await loop.run_in_executor(self._work, strays.remove, self._files, log.folder, aside)
        # A log of the same name may follow at once: what is noted of this one must not be taken for it after a crash.
        await self._save(clean=False)

    async def find_strays(self) -> list[Stray]:
        """Logs that nobody wanted when they were found, and that say whose they were."""
        return await asyncio.get_running_loop().run_in_executor(self._work, strays.find, self._files, self._folder)

    async def discard(self, stray: Stray) -> None:
        """Removes what is stored of it, for good."""
        aside = strays.aside_of(stray.folder, REMOVED)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._work, strays.remove, self._files, stray.folder, aside)

    async def close(self) -> None:
        self._closing = True
        if self._keeper is not None:
            self._due.set()
            await self._keeper
        if self._waiting:
            await self._try_to_save()
        results = await asyncio.gather(*(log.close() for log in self._logs.values()), return_exceptions=True)
        clean = True
        for log, result in zip(self._logs.values(), results, strict=True):
            if isinstance(result, BaseException):
                logger.error("log not closed cleanly", extra=fields(log=str(log.topic_partition), error=str(result)))
            clean = clean and result is None and log.failure is None and log.recovery_offset == log.end_offset
        if self._is_open:
            try:
                await self._save(clean=clean)
                self.was_closed_cleanly = clean
            except OSError as error:
                logger.error("checkpoint not saved", extra=fields(error=str(error)))
        for pool in self._pools:
            pool.shutdown()
        self._logs.clear()

    def _path(self, at: TopicPartition) -> Path:
        return self._folder / str(at)

    def _recover_all(
        self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]
    ) -> dict[TopicPartition, SegmentedLog]:
        files = self._files
        files.make_folder(self._folder)
        files.sync_folder(self._folder.parent)
        saved = checkpoint.load(files, self._folder)
        present = set()
        for name in files.list_folder(self._folder):
            if name.endswith(REMOVED):
                files.remove_folder(self._folder / name)
            else:
                present.add(name)
        beside = {companion_of(at): (topic_id, companion_config(config)) for at, (topic_id, config) in wanted.items()}
        wanted = {**wanted, **{at: found for at, found in beside.items() if str(at) in present}}
        self._set_strays_aside(present, wanted)
        logs = {}
        for at, (topic_id, config) in wanted.items():
            point = saved.logs.get(str(at))
            try:
                if str(at) in present:
                    logs[at] = recovery.recover(
                        at, topic_id, self._path(at), config, self._surroundings, point, saved.clean
                    )
                else:
                    logs[at] = self._create(at, topic_id, config)
            except (OSError, StorageError) as error:
                logger.critical("log is offline", extra=fields(log=str(at), reason=str(error)))
                if point is not None:
                    # Nobody looked at it this time: after a clean stop it still counts as far as it did before.
                    end = point.end if saved.clean else point.recovery
                    self._offline[str(at)] = LogPoint(point.start, end, end, point.high)
        return logs

    async def _make_pairs_whole(self, at: TopicPartition) -> None:
        main, companion = self._logs.get(at), self._logs.get(companion_of(at))
        if main is None or companion is None:
            return
        try:
            await reconcile(main, companion, main.recovery_offset)
        except (OSError, StorageError, ApiError) as error:
            main.fail(StorageError(f"{at} and its companion cannot be brought together: {error}"))

    def _forget_cuts(self, logs: list[SegmentedLog]) -> None:
        for log in logs:
            forget_cut(self._files, log.folder)

    def _set_strays_aside(
        self, present: set[str], wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]
    ) -> None:
        """Folders of topics that no longer exist, or were made anew, must not be taken for the topic of today."""
        ids = {str(at): topic_id for at, (topic_id, _) in wanted.items()}
        for name in sorted(present):
            folder = self._folder / name
            if name.endswith((STRAY, ".new")) or not self._files.is_folder(folder):
                continue
            owner = read_identity(self._files, folder)
            if name in ids and (owner is None or owner.topic_id == ids[name]):
                continue  # one that does not say whose it is is left to the recovery
            present.discard(name)
            strays.set_aside(self._files, folder, owner)
        self._files.sync_folder(self._folder)

    def _create(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> SegmentedLog:
        folder = self._path(at)
        if self._files.exists(folder):
            owner = read_identity(self._files, folder)
            if owner is not None and owner.topic_id != topic_id:
                strays.set_aside(self._files, folder, owner)
        return recovery.create(at, topic_id, folder, config, self._surroundings)

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
                await asyncio.wait_for(self._due.wait(), max(0, next_sync - loop.time()))
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
            logger.error("checkpoint not saved", extra=fields(error=str(error)))

    async def _sync_all(self) -> None:
        for log in list(self._logs.values()):
            log.cool()
            if log.failure is None and log.recovery_offset < log.end_offset:
                try:
                    await log.flush()
                except StorageError:
                    continue  # said where it happened; the other logs go on

    async def _save(self, *, clean: bool) -> None:
        loop = asyncio.get_running_loop()
        async with self._saving:
            points = self._offline | {
                str(at): LogPoint(log.start_offset, log.recovery_offset, log.end_offset, log.saved_high_watermark)
                for at, log in self._logs.items()
            }
            waiting, self._waiting = self._waiting, []
            content = Checkpoint(clean, points)
            try:
                await loop.run_in_executor(self._work, checkpoint.save, self._files, self._folder, content)
            except OSError as error:
                _tell(waiting, StorageError(f"the checkpoint was not saved: {error}"))
                raise
            _tell(waiting, None)


def _tell(waiting: list[asyncio.Future[None]], failure: StorageError | None) -> None:
    for future in waiting:
        if future.done():
            continue
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(None)
