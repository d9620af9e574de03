"""Questions about a partition's offsets, and DeleteRecords and DescribeLogDirs, which act on its log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from penstock.broker.context import RequestContext
from penstock.cluster.timer_topics import TimerTopic, timer_topic
from penstock.config.setting import LONG_MAX
from penstock.delay.delays import Delays
from penstock.delay.showing import IDS_END
from penstock.errors import ApiError, Code, StorageError, code_of
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.storage.contract import TimedOffset
from penstock.views.catalogue import Catalogue

R = TypeVar("R")
W = TypeVar("W")

_READ_COMMITTED = 1
_KNOWS_NOT_AVAILABLE = 5
"""The first version whose clients know OFFSET_NOT_AVAILABLE (KIP-207)."""
_SPECIAL_TIMES = (
    LATEST_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    MAX_TIMESTAMP,
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
)


class OffsetHandlers:
    def __init__(self, replicas: Replicas, catalogue: Catalogue, delays: Delays, data: Path) -> None:
        self._replicas = replicas
        self._catalogue = catalogue
        self._delays = delays
        self._data = data

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        async def look_up(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            index = wanted.partition_index
            try:
                timers = timer_topic(topic)
                base = self._catalogue.base_of(topic) if timers is None else timers.base
                partition = self._replicas.find(base, index)
                partition.check_epoch(wanted.current_leader_epoch)
                partition.check_leads()
                if timers is None:
                    found = await _offset_at(partition, wanted.timestamp, request.isolation_level)
                else:
                    found = await self._number_at(partition, timers, wanted.timestamp)
            except (ApiError, StorageError) as error:
                code = code_of(error)
                if code is Code.OFFSET_NOT_AVAILABLE and context.version < _KNOWS_NOT_AVAILABLE:
                    code = Code.LEADER_NOT_AVAILABLE
                return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
            if found is None:
                return ListOffsetsPartitionResponse(partition_index=index)
            return ListOffsetsPartitionResponse(
                partition_index=index,
                timestamp=found.timestamp_ms,
                offset=found.offset,
                leader_epoch=found.leader_epoch,
            )

        return ListOffsetsResponse(
            topics=tuple(
                [
                    ListOffsetsTopicResponse(
                        name=topic.name, partitions=await _each(topic.name, topic.partitions, look_up)
                    )
                    for topic in request.topics
                ]
            )
        )

    async def _number_at(self, partition: Partition, timers: TimerTopic, timestamp: int) -> TimedOffset | None:
        """A place among what waits: its times are due times, and it begins at 0."""
        _check_time(timestamp)
        epoch = partition.leader_epoch
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return TimedOffset(0, -1, epoch)
        listing = await self._delays.listing(partition)
        if timestamp == LATEST_TIMESTAMP:
            end = IDS_END if timers.by_id else 0 if listing is None else await listing.end()
            return TimedOffset(end, -1, epoch)
        if timestamp < 0 or listing is None or timers.by_id:
            return None
        found = await listing.find_time(timestamp)
        return None if found is None else TimedOffset(found.number, found.due_ms, epoch)

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        async def look_up(topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
            try:
                timers = timer_topic(topic)
                base = self._catalogue.base_of(topic) if timers is None else timers.base
                partition = self._replicas.find(base, wanted.partition)
                partition.check_epoch(wanted.current_leader_epoch)
                partition.check_leads()
            except (ApiError, StorageError) as error:
                return EpochEndOffset(partition=wanted.partition, error_code=code_of(error))
            if timers is not None:
                # Whoever leads tells the same: nobody has read what others have not.
                return EpochEndOffset(
                    partition=wanted.partition, leader_epoch=partition.leader_epoch, end_offset=LONG_MAX
                )
            epoch, end = partition.log.epochs.end_of(wanted.leader_epoch, partition.log.end_offset)
            return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end)

        return OffsetForLeaderEpochResponse(
            topics=tuple(
                [
                    OffsetForLeaderTopicResult(
                        topic=topic.topic, partitions=await _each(topic.topic, topic.partitions, look_up)
                    )
                    for topic in request.topics
                ]
            )
        )

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        async def trim(topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
            index = wanted.partition_index
            try:
                start = await self._replicas.find(topic, index).trim(wanted.offset)
            except (ApiError, StorageError) as error:
                return DeleteRecordsPartitionResult(partition_index=index, error_code=code_of(error))
            return DeleteRecordsPartitionResult(partition_index=index, low_watermark=start)

        return DeleteRecordsResponse(
            topics=tuple(
                [
                    DeleteRecordsTopicResult(
                        name=topic.name, partitions=await _each(topic.name, topic.partitions, trim)
                    )
                    for topic in request.topics
                ]
            )
        )

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse:
        asked = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        sizes: dict[str, list[DescribeLogDirsPartition]] = {}
        for partition in self._replicas:
            topic, index = partition.topic_partition
            if asked is None or index in asked.get(topic, ()):
                size = partition.beside.size_bytes
                sizes.setdefault(topic, []).append(DescribeLogDirsPartition(partition_index=index, partition_size=size))
        disk = os.statvfs(self._data)
        result = DescribeLogDirsResult(
            log_dir=str(self._data.absolute()),
            topics=tuple(DescribeLogDirsTopic(name=name, partitions=tuple(found)) for name, found in sizes.items()),
            total_bytes=disk.f_blocks * disk.f_frsize,
            usable_bytes=disk.f_bavail * disk.f_frsize,
        )
        return DescribeLogDirsResponse(results=(result,))


async def _each(topic: str, items: tuple[W, ...], work: Callable[[str, W], Awaitable[R]]) -> tuple[R, ...]:
    return tuple([await work(topic, item) for item in items])


def _check_time(timestamp: int) -> None:
    if timestamp < 0 and timestamp not in _SPECIAL_TIMES:
        raise ApiError(Code.INVALID_REQUEST, f"{timestamp} is neither a time nor one of {_SPECIAL_TIMES}")


async def _offset_at(partition: Partition, timestamp: int, isolation_level: int) -> TimedOffset | None:
    _check_time(timestamp)
    log = partition.log
    end = partition.last_stable_offset if isolation_level == _READ_COMMITTED else partition.high_watermark
    if timestamp >= 0:
        found = await log.find_time(timestamp)
    elif timestamp == MAX_TIMESTAMP:
        found = await log.find_max_timestamp()
    elif timestamp == LATEST_TIMESTAMP:
        partition.check_watermark()
        return TimedOffset(end, -1, partition.leader_epoch)
    elif timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return TimedOffset(log.start_offset, -1, log.epochs.epoch_at(log.start_offset))
    else:
        return None  # there are no tiers
    if found is None or found.offset < end:
        return found
    # What is not visible yet does not exist for a reader.
    partition.check_watermark()
    return None
