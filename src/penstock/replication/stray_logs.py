"""Logs that were set aside at the start, and are removed when the metadata says that they do not belong here.

A broker that was away finds out only when it comes back that topics were deleted, or that its replicas were placed
elsewhere. What is left of them takes up room for nothing. Rules:

- Only for a broker whose data folder belongs to the cluster that the metadata is of: one tree that was lost or changed
  by mistake must not take the records with it.
- Not at once: until `log.stray_keep_ms` after the start the operator can stop the broker and save what he wants.
- It is decided when the time is over, on the image of then. What this image has on this broker stays.

In shared storage the broker that led a partition removes the log when the topic is deleted. If that broker was dead, or
the storage was away, the log stays behind, and it may be that no broker ever opens it again. So the controller looks
for such logs, again and again:

- A log goes if its topic is gone from the metadata, read anew, and was at the look before; or if the partition was in
  another database group at both looks, and not on its way to this one. Between the two lies `log.stray_keep_ms`, and at
  least a minute: an image can be behind what is stored, and a topic that has just been made is not in it yet.
- What is left of a retired partition goes with its topic.
- The engine names only logs of this cluster: another one that uses the same storage must not lose its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.background_loop import run_forever
from penstock.cluster.metadata import MetadataImage
from penstock.errors import CoordinationError, StorageError
from penstock.ids import BrokerId
from penstock.logs import fields
from penstock.storage.contract import Engine, StrayLog

logger = logging.getLogger(__name__)

_LEAST_LOOK_S = 60.0


def is_gone(image: MetadataImage, broker: BrokerId, stray: StrayLog) -> bool:
    """Whether the broker has no replica of the partition that this log was of."""
    topic, index = image.topic_by_id(stray.topic_id), stray.topic_partition.partition
    return topic is None or index >= len(topic.partitions) or broker not in topic.partitions[index].replicas


def is_orphan(image: MetadataImage, stray: StrayLog) -> bool:
    """Whether no broker would open this log in shared storage."""
    topic, index = image.topic_by_id(stray.topic_id), stray.topic_partition.partition
    if topic is None:
        return True
    if index >= len(topic.partitions):
        return False  # a partition of that number may be added again
    partition = topic.partitions[index]
    return stray.database not in (partition.database, partition.database_to)


class StrayRemoval:
    """One look, some time after the start."""

    def __init__(self, engine: Engine, broker: BrokerId, image: Callable[[], MetadataImage], keep_ms: int) -> None:
        self._engine = engine
        self._broker = broker
        self._image = image
        self._keep_s = keep_ms / 1000
        self._stop = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="stray logs")

    async def close(self) -> None:
        self._stop.set()
        if self._waiting is not None:
            await self._waiting

    async def look(self) -> None:
        """Removes the logs that do not belong here."""
        try:
            strays = await self._engine.find_strays()
        except OSError as error:
            logger.error("could not look for stray logs", extra=fields(error=str(error)))
            return
        for stray in strays:
            if self._stop.is_set():
                return
            if not is_gone(self._image(), self._broker, stray):
                continue
            try:
                await self._engine.discard(stray)
                logger.info("deleted a stray log", extra=fields(folder=stray.name))
            except OSError as error:
                logger.error("could not delete a stray log", extra=fields(folder=stray.name, error=str(error)))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._keep_s):
                await self._stop.wait()
        except TimeoutError:
            await self.look()


class SharedStrayRemoval:
    """Looks again and again, on the broker that is the controller."""

    def __init__(
        self,
        engine: Engine,
        refresh: Callable[[], Awaitable[MetadataImage]],
        is_controller: Callable[[], bool],
        keep_ms: int,
    ) -> None:
        """`refresh` reads the metadata anew."""
        self._engine = engine
        self._refresh = refresh
        self._is_controller = is_controller
        self._keep_s = max(keep_ms / 1000, _LEAST_LOOK_S)
        self._gone: frozenset[StrayLog] = frozenset()
        """Logs that no broker would open at the last look."""
        self._stop = asyncio.Event()
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._waiting = asyncio.get_running_loop().create_task(
            run_forever("stray logs in shared storage", self._wait), name="stray logs in shared storage"
        )

    async def close(self) -> None:
        self._stop.set()
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.wait({self._waiting})

    async def look(self) -> None:
        """Removes logs that no broker would open at the last look, nor now."""
        if not self._is_controller():
            self._gone = frozenset()
            return
        try:
            strays = await self._engine.find_strays()
            image = await self._refresh()
        except (OSError, StorageError, CoordinationError) as error:
            logger.warning("could not look for stray logs in shared storage", extra=fields(error=str(error)))
            return
        left = [stray for stray in strays if is_orphan(image, stray)]
        before, self._gone = self._gone, frozenset(left)
        for stray in left:
            if self._stop.is_set():
                return
            if stray not in before:
                continue
            try:
                await self._engine.discard(stray)
                logger.info("deleted a stray log in shared storage", extra=fields(log=stray.name))
            except (OSError, StorageError) as error:
                logger.error("could not delete a stray log", extra=fields(log=stray.name, error=str(error)))

    async def _wait(self) -> None:
        await asyncio.sleep(self._keep_s)
        await self.look()
