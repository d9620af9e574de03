"""Keeping the in-sync sets of the partitions that this broker leads: what has changed is committed, together.

A change is proposed by the partition's leadership (`leadership.py`) and counts from the moment it is proposed as far as
that is the careful side. It is over when the commit has been answered and this broker's partitions have taken in the
image that it led to; not when any newer image comes, for the commit may still follow on that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.errors import ConflictError, CoordinationError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.replication.leadership import Leadership
from penstock.replication.partition import Partition
from penstock.yielding import yielding

logger = logging.getLogger(__name__)

_PARTITIONS_PER_TURN = 500
"""So many are looked at before others have their turn."""


class InSyncChange(NamedTuple):
    """What a leader wants the in-sync set to be; it counts only if the epoch is still the leader's."""

    leader_epoch: int
    in_sync: frozenset[BrokerId]


Commit = Callable[[Mapping[TopicPartition, InSyncChange]], Awaitable[None]]


class InSyncKeeper:
    """Looks at the leaders of this broker at intervals, and soon when something has happened to one."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        commit: Commit,
        applied: Callable[[Collection[str]], Awaitable[None]],
        clock: Clock,
        interval_ms: float,
    ) -> None:
        self._partitions = partitions
        self._commit = commit
        self._applied = applied
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            run_forever("in-sync sets", self._wait_and_look), name="in-sync sets"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def look_soon(self) -> None:
        """A follower that is not in sync has fetched and may have caught up, or an append has failed."""
        self._soon.set()

    async def _wait_and_look(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._soon.wait()
        except TimeoutError:
            pass
        self._soon.clear()
        await self._look()

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        proposals: dict[Partition, Leadership] = {}
        changes: dict[TopicPartition, InSyncChange] = {}
        async for partition in yielding(list(self._partitions()), _PARTITIONS_PER_TURN):
            leadership = partition.leadership
            if leadership is None:
                continue
            can_write = partition.pair.can_write
            wanted = leadership.proposed or leadership.proposal(partition.log.end_offset, now_ms, can_write=can_write)
            if wanted is not None:
                leadership.propose(wanted)
                proposals[partition] = leadership
                changes[partition.topic_partition] = InSyncChange(leadership.epoch, wanted)
        if not changes:
            return
        logger.info(
            "changing in-sync sets",
            extra=fields(**{str(at): sorted(change.in_sync) for at, change in list(changes.items())[:10]}),
        )
        try:
            await self._commit(changes)
        except ConflictError as error:
            logger.warning("could not commit changed in-sync sets", extra=fields(reason=str(error)))
        except CoordinationError as error:
            # It is unknown which of the two sets counts: both do, and the same is proposed again.
            logger.warning("unknown whether changed in-sync sets were committed", extra=fields(reason=str(error)))
            return
        await self._applied({at.topic for at in changes})
        for partition, leadership in proposals.items():
            partition.decided(leadership)
