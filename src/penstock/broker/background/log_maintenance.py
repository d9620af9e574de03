"""Retention and compaction, at their intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.broker.background.archive_hold import ArchiveHold
from penstock.config.broker import LogSettings
from penstock.errors import PenstockError
from penstock.logs import fields
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.yielding import yielding

logger = logging.getLogger(__name__)


class LogMaintenance:
    """Two loops, each with a name and a stop."""

    def __init__(self, replicas: Replicas, archive: ArchiveHold, settings: LogSettings) -> None:
        self._replicas = replicas
        self._archive = archive
        self._settings = settings
        self._stop = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        for name, every_ms, work in (
            ("retention", self._settings.retention_check_ms, self._retain),
            ("compaction", self._settings.compaction_check_ms, _compact),
        ):
            self._loops.append(loop.create_task(self._run(name, every_ms / 1000, work), name=name))

    async def close(self) -> None:
        self._stop.set()
        if self._loops:
            await asyncio.wait(self._loops)

    async def _run(self, name: str, every_s: float, work: Callable[[Partition], Awaitable[None]]) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await self._stop.wait()
            except TimeoutError:
                async for partition in yielding(list(self._replicas)):
                    if self._stop.is_set() or partition.is_gone:
                        continue
                    try:
                        await work(partition)
                    except (PenstockError, OSError) as error:
                        logger.error(
                            f"{name} failed", extra=fields(log=str(partition.topic_partition), error=str(error))
                        )

    async def _retain(self, partition: Partition) -> None:
        if partition.log.successor is None:  # else it is kept for its readers: see retirement.py
            await self._archive.retain(partition)


async def _compact(partition: Partition) -> None:
    await partition.log.compact()
