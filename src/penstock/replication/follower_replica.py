"""What a partition that follows asks its leader for, and what it does with the answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.errors import code_from
from penstock.logs import fields
from penstock.protocol.fetch import FetchPartition
from penstock.protocol.replica_fetch import ReplicaResult
from penstock.replication.divergence import (
    Append,
    BeginAt,
    CutBack,
    Divergence,
    Position,
    next_step,
    position_of,
)
from penstock.replication.partition import Partition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerReplica:
    """One partition that follows."""

    partition: Partition

    @property
    def leader_epoch(self) -> int:
        return self.partition.leader_epoch

    @property
    def can_follow(self) -> bool:
        """Whether the disk has room. A replica with a full disk must not rejoin the ISR, where it might lead again."""
        return self.partition.pair.has_room

    def wanted(self, max_bytes: int) -> FetchPartition:
        """What to ask the leader for."""
        partition, log = self.partition, self.partition.log
        offset, last_epoch = position_of(log.epochs, log.end_offset)
        topic, index = partition.topic_partition
        return FetchPartition(
            topic, log.topic_id.bytes, index, partition.leader_epoch, offset, last_epoch, log.start_offset, max_bytes
        )

    async def take(self, asked: FetchPartition, result: ReplicaResult) -> bool:
        """Does what the leader's response asks for; False if there is nothing to do before some time has passed."""
        if len(result.records):
            await self.partition.log.prepare_write()
        async with self.partition.pair.writing():
            # The role may have changed since the fetch was sent, or while an earlier write ended.
            if self.partition.leadership is not None or asked.current_leader_epoch != self.partition.leader_epoch:
                return True
            return await self._take(asked, result)

    async def _take(self, asked: FetchPartition, result: ReplicaResult) -> bool:
        partition, log, pair = self.partition, self.partition.log, self.partition.pair
        position = Position(asked.fetch_offset, asked.last_fetched_epoch)
        divergence = None if result.diverging is None else Divergence(*result.diverging)
        step = next_step(code_from(result.error_code), divergence, result.log_start_offset, position, log.epochs)
        match step:
            case Append():
                if len(result.records):
                    await pair.append_as_is(result.records)
                    partition.has_companion()
                if result.log_start_offset > log.start_offset:
                    await log.trim(min(result.log_start_offset, log.end_offset))
                partition.follow_watermark(result.high_watermark, len(result.records))
            case CutBack(end_offset):
                if end_offset < partition.high_watermark:
                    logger.error(
                        "truncating acknowledged records",
                        extra=fields(
                            log=str(partition.topic_partition), end=end_offset, high_watermark=partition.high_watermark
                        ),
                    )
                    pair.beginnings += 1
                await pair.cut(end_offset)
                partition.high_watermark = min(partition.high_watermark, log.end_offset)
            case BeginAt(start_offset):
                await pair.begin_at(start_offset)
                partition.high_watermark = start_offset
            case _:
                return False
        return True
