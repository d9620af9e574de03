"""Damage in the log of one replica, repaired with what another replica has.

Below its high watermark every replica has the same records at the same offsets, so any live replica can give a copy:
this broker fetches from it as a consumer does (KIP-392), from a follower too. A copy is believed only if its CRCs are
sound, and is written in the place of the damage only if it fits there byte by byte (`Log.repair`). Where it does not,
because one of the two logs was compacted, the damage stays; readers get the copy all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from penstock.background_loop import run_forever
from penstock.errors import PenstockError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.replication.partition import Partition
from penstock.storage.contract import DamagedRange
from penstock.storage.leader_batches import sound_batches

logger = logging.getLogger(__name__)

FetchFrom = Callable[[BrokerId, Partition, int, int], Awaitable[memoryview]]
"""Batches that another broker has, from an offset on, of about so many bytes; PenstockError if it gives none."""

_LOOK_EVERY_S = 10.0
_MIN_FETCH_BYTES = 1 << 16
_AT_A_TIME = 100
"""Partitions looked at before others have their turn."""


async def no_other_broker(broker: BrokerId, partition: Partition, offset: int, max_bytes: int) -> memoryview:
    raise PenstockError("there are no other brokers")


class DamageRepair:
    """Repairs what is known to be damaged on this broker, again and again until it is not."""

    def __init__(self, partitions: Callable[[], Iterable[Partition]], fetch: FetchFrom = no_other_broker) -> None:
        self._partitions = partitions
        self._fetch = fetch
        self._task: asyncio.Task[None] | None = None
        self._misfits: set[tuple[TopicPartition, DamagedRange]] = set()
        """Damage for which a copy does not fit, which is said once."""
        self.repaired = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            run_forever("damage repair", self._look), name="damage repair"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def copy_of(self, partition: Partition, damage: DamagedRange) -> bytes | None:
        """What another replica has in the place of a damaged range, which is repaired with it if it fits; None if no
        replica has all of it.
        """
        if damage.resumes_at > partition.high_watermark:
            return None
        for broker in partition.other_replicas():
            try:
                copy = await self._copy_from(broker, partition, damage)
            except PenstockError as error:
                logger.debug(
                    "no copy of damaged records",
                    extra=fields(log=str(partition.topic_partition), broker=broker, reason=str(error)),
                )
                continue
            if copy is not None:
                await self._repair(broker, partition, damage, copy)
                return copy
        return None

    async def _copy_from(self, broker: BrokerId, partition: Partition, damage: DamagedRange) -> bytes | None:
        kept: list[memoryview] = []
        offset = damage.first_offset
        while offset < damage.resumes_at:
            found = await self._fetch(broker, partition, offset, max(damage.size, _MIN_FETCH_BYTES))
            before = offset
            for header, batch in sound_batches(found):
                if header.base_offset >= damage.resumes_at:
                    # Compaction there may have left nothing at the end of the range.
                    offset = damage.resumes_at
                    break
                if header.base_offset < offset or header.next_offset > damage.resumes_at:
                    return None
                kept.append(batch)
                offset = header.next_offset
            if offset == before:
                return None
        return b"".join(kept)

    async def _repair(self, broker: BrokerId, partition: Partition, damage: DamagedRange, copy: bytes) -> None:
        said = fields(
            log=str(partition.topic_partition),
            from_offset=damage.first_offset,
            to_offset=damage.resumes_at - 1,
            copied_from_broker=broker,
        )
        if await partition.log.repair(damage, memoryview(copy)):
            self.repaired += 1
            logger.warning("replaced damaged records with a copy from another replica", extra=said)
        elif (partition.topic_partition, damage) not in self._misfits:
            self._misfits.add((partition.topic_partition, damage))
            logger.warning(
                "left damaged records in place: the copy does not fit, because one of the two logs was compacted",
                extra=said,
            )

    async def _look(self) -> None:
        await asyncio.sleep(_LOOK_EVERY_S)
        for number, partition in enumerate(tuple(self._partitions())):
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            for damage in partition.log.damage:
                if (partition.topic_partition, damage) not in self._misfits:
                    await self.copy_of(partition, damage)
