"""Opens logs in shared storage for the broker that leads them, some at a time.

A log is opened and taken over in the leader epoch that the metadata says. What fails is the caller's to try again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from penstock.cluster.metadata import PartitionImage, TopicImage
from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicPartition, companion_of
from penstock.logs import fields
from penstock.storage.contract import Engine, Log

logger = logging.getLogger(__name__)

_AT_ONCE = 16
"""If this many fail in a row, those that wait for their turn are left for the next attempt: a database that does not
answer holds up the metadata for one time limit, not for one per partition.
"""


class TakenOver(NamedTuple):
    """What became of one log."""

    log: Log | None
    """To be led, or only to be read if its database takes no writes; None if neither can be done."""
    error: Exception | None
    """Why it cannot be led."""


class TakeOvers:
    """Those of one broker."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._failures = 0
        """How many have failed since the last that succeeded."""

    async def take_over(
        self, engine: Engine, topic: TopicImage, partition: PartitionImage, config: TopicConfig
    ) -> TakenOver:
        """A log of an internal topic is not opened to be read: its state must not go on from an older one."""
        at, failures = TopicPartition(topic.name, partition.index), self._failures
        async with self._turns:
            if self._failures >= failures + _AT_ONCE:
                return TakenOver(None, StorageError("shared storage does not answer"))
            try:
                log = await engine.create(at, topic.id, config, partition.database)
                companion = engine.logs.get(companion_of(at))
                for each in (log,) if companion is None else (companion, log):
                    await each.take_over(partition.leader_epoch)
            except Exception as error:
                # Other logs of the topic can be led all the same.
                await release(engine, at)
                copy = None if topic.is_internal else await self._copy_of(engine, topic, partition, config)
                self._failures = self._failures + 1 if copy is None else 0
                return TakenOver(copy, error)
            self._failures = 0
            return TakenOver(log, None)

    async def _copy_of(
        self, engine: Engine, topic: TopicImage, partition: PartitionImage, config: TopicConfig
    ) -> Log | None:
        """A log to be read while its database takes no writes."""
        if engine.takes_writes(partition.database):
            return None
        at = TopicPartition(topic.name, partition.index)
        try:
            return await engine.open_read_only(at, topic.id, config, partition.database)
        except StorageError as error:
            logger.warning(
                "cannot open a log to read it while its database takes no writes",
                extra=fields(log=str(at), reason=str(error)),
            )
            return None


async def release(engine: Engine, at: TopicPartition) -> None:
    """Closes a log in shared storage, and its companion; what is stored stays."""
    open_logs = [each for each in (at, companion_of(at)) if each in engine.logs]
    try:
        await engine.release(*open_logs)
    except (OSError, StorageError) as error:
        logger.error("could not release logs", extra=fields(first=str(at), error=str(error)))
