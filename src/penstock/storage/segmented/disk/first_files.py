"""The folder of a log and the first files in it: made when the log is first written to.

A topic may have thousands of partitions, most of which see no record for a long time. What the broker has to know of a
log without records is in the coordination tree: that its topic exists, and that the log is on this broker. See "A log
without records" in `docs/formats/log.md`.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.background_loop import shielded
from penstock.errors import DiskFullError, StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.storage.files import Files
from penstock.storage.segmented.disk.identity import Identity, create_identity
from penstock.storage.segmented.flusher import NO_ROOM
from penstock.storage.segmented.segment import LOG, Segment

if TYPE_CHECKING:
    from penstock.storage.segmented.log import SegmentedLog

logger = logging.getLogger(__name__)


def make_files(files: Files, folder: Path, topic_id: TopicId, at: TopicPartition, segment: Segment) -> None:
    """In a thread. On return all that is in the folder would survive a power loss, once the folder itself would;
    StorageError if the folder holds records already.
    """
    files.make_folder(folder)
    for name in files.list_folder(folder):
        if name.endswith(LOG) and files.open(folder / name).size():
            raise StorageError(f"{folder.name} holds records already and is left as it is")
    # Not aside and renamed: without records behind it, one that is torn by a crash is written again.
    create_identity(files, folder, Identity(topic_id, at))
    segment.create_file()
    files.sync_folder(folder)
    segment.entry_synced = True


class FolderSync:
    """Syncs a folder on behalf of many logs: those that ask while one sync is under way share the next."""

    def __init__(self, files: Files, folder: Path, pool: Executor) -> None:
        self._files = files
        self._folder = folder
        self._pool = pool
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        """Returns when every name that was in the folder at the call would survive a power loss."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._run(self._running), name="sync logs folder")
        await shielded(self._next)

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await asyncio.get_running_loop().run_in_executor(self._pool, self._files.sync_folder, self._folder)


class FirstFiles:
    """Makes the files of one log, once. The log is named in each call: one that holds the other is enough."""

    __slots__ = ("_making", "are_made")

    def __init__(self) -> None:
        self._making: asyncio.Task[None] | None = None
        self.are_made = False

    @property
    def is_idle(self) -> bool:
        """Nothing was begun yet."""
        return not self.are_made and self._making is None

    async def ensure(self, log: SegmentedLog) -> None:
        """Returns when the files are there; DiskFullError if there is no room for them now."""
        while not self.are_made:
            if log.refusal is not None:
                raise log.refusal
            if self._making is None:
                # A task of its own: if the waiting caller is cancelled, the files are still made.
                name = f"make files of {log.topic_partition}"
                self._making = asyncio.get_running_loop().create_task(self._make(log), name=name)
            await shielded(self._making)

    async def wait(self) -> None:
        """Returns when nothing is under way."""
        if self._making is not None:
            await asyncio.wait([self._making])

    async def _make(self, log: SegmentedLog) -> None:
        try:
            await log.make_files()
            self.are_made = True
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise log.fail(StorageError(f"making the files of {log.topic_partition} failed: {error}")) from error
            if not log.disk_is_full:
                logger.error(
                    "no disk space left for a write", extra=fields(log=str(log.topic_partition), error=str(error))
                )
            log.disk_is_full = True
            raise DiskFullError(f"no room on the disk for {log.topic_partition}: {error.strerror}") from error
        except StorageError as error:
            raise log.fail(error) from error
        finally:
            self._making = None
