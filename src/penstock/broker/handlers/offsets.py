"""ListOffsets and OffsetForLeaderEpoch, and DeleteRecords and DescribeLogDirs, which act on logs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from penstock.broker.handlers.change_results import duplicates
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.sliced_work import Work
from penstock.cluster.timer_topics import TimerTopic, timer_topic
from penstock.config.setting import LONG_MAX
from penstock.delay.delays import Delays
from penstock.delay.listing import IDS_END
from penstock.errors import ApiError, Code, StorageError, code_of
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.protocol.messages.describe_log_dirs import (
    DescribedSegment,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
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
from penstock.storage.contract import LogSegment, TimedOffset
from penstock.views.catalogue import Catalogue

R = TypeVar("R")
W = TypeVar("W")

_READ_COMMITTED = 1
_NEVER = 1 << 15
_KNOWS_NOT_AVAILABLE = 5
"""The first version whose clients know OFFSET_NOT_AVAILABLE (KIP-207)."""
_SPECIAL_TIMES = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version in which a client may request each."""


class OffsetHandlers:
    def __init__(self, replicas: Replicas, catalogue: Catalogue, delays: Delays, data: Path) -> None:
        self._replicas = replicas
        self._catalogue = catalogue
        self._delays = delays
        self._data = data

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        asked_ms = self._replicas.now_ms()
        twice = duplicates(
            (topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions
        )

        async def look_up(topic: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            index = wanted.partition_index
            try:
                if (topic, index) in twice:
                    raise ApiError(Code.INVALID_REQUEST, f"{topic}-{index} is in the request more than once")
                _check_time(wanted.timestamp, context.version)
                timers = timer_topic(topic)
                base = self._catalogue.base_of(topic) if timers is None else timers.base
                partition = self._replicas.find(base, index)
                partition.check_epoch(wanted.current_leader_epoch)
                await partition.confirm_leads(asked_ms)
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
                        name=topic.name, partitions=await _each(topic.name, topic.partitions, look_up, context.work)
                    )
                    async for topic in context.work.over(request.topics)
                ]
            )
        )

    async def _number_at(self, partition: Partition, timers: TimerTopic, timestamp: int) -> TimedOffset | None:
        """A place among what waits: its times are due times, and it begins at 0."""
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
        asked_ms = self._replicas.now_ms()

        async def look_up(topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
            try:
                timers = timer_topic(topic)
                base = self._catalogue.base_of(topic) if timers is None else timers.base
                partition = self._replicas.find(base, wanted.partition)
                partition.check_epoch(wanted.current_leader_epoch)
                await partition.confirm_leads(asked_ms)
            except (ApiError, StorageError) as error:
                return EpochEndOffset(partition=wanted.partition, error_code=code_of(error))
            if timers is not None:
                # Every leader gives the same answer: no replica has read what others have not.
                return EpochEndOffset(
                    partition=wanted.partition, leader_epoch=partition.leader_epoch, end_offset=LONG_MAX
                )
            epoch, end = _end_of_epoch(partition, wanted.leader_epoch)
            return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end)

        return OffsetForLeaderEpochResponse(
            topics=tuple(
                [
                    OffsetForLeaderTopicResult(
                        topic=topic.topic, partitions=await _each(topic.topic, topic.partitions, look_up, context.work)
                    )
                    async for topic in context.work.over(request.topics)
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
                        name=topic.name, partitions=await _each(topic.name, topic.partitions, trim, context.work)
                    )
                    async for topic in context.work.over(request.topics)
                ]
            )
        )

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse:
        asked = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
        sizes: dict[str, list[DescribeLogDirsPartition]] = {}
        async for partition in context.work.over(list(self._replicas)):
            topic, index = partition.topic_partition
            if asked is None or index in asked.get(topic, ()):
                segments = partition.log.described_segments() if request.include_segments else ()
                await context.work.grow(1 + len(segments))
                found = DescribeLogDirsPartition(
                    partition_index=index,
                    partition_size=partition.pair.size_bytes,
                    segments=tuple(_segment(each) for each in segments),
                )
                sizes.setdefault(topic, []).append(found)
        disk = os.statvfs(self._data)
        result = DescribeLogDirsResult(
            log_dir=str(self._data.absolute()),
            topics=tuple(DescribeLogDirsTopic(name=name, partitions=tuple(each)) for name, each in sizes.items()),
            total_bytes=disk.f_blocks * disk.f_frsize,
            usable_bytes=disk.f_bavail * disk.f_frsize,
        )
        return DescribeLogDirsResponse(results=(result,))


async def _each(
    topic: str, items: tuple[W, ...], look_at: Callable[[str, W], Awaitable[R]], work: Work
) -> tuple[R, ...]:
    return tuple([await look_at(topic, item) async for item in work.over(items)])


def _segment(segment: LogSegment) -> DescribedSegment:
    return DescribedSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size=segment.size_bytes,
        first_timestamp=segment.first_timestamp_ms,
        max_timestamp=segment.max_timestamp_ms,
    )


def _check_time(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _SPECIAL_TIMES.get(timestamp, _NEVER):
        raise ApiError(Code.UNSUPPORTED_VERSION, f"the time {timestamp} means nothing in version {version}")


def _end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """(largest epoch not above `epoch`, where it ended), as the log says; (-1, -1) if that is not known.

    The log knows of an epoch once it has a record of it. Clients know it before: from the answer that told them where
    an empty log begins, or any log ends. This leader's epoch begins where the log ended when it began.
    """
    epochs, end = partition.log.epochs, partition.log.end_offset
    latest = epochs.latest
    if partition.log.is_read_only and 0 <= epoch <= partition.leader_epoch and (latest is None or epoch >= latest):
        # The log may have more than this broker knows. A reader that has read that must not take it for truncated.
        return epoch, LONG_MAX
    if epoch < 0 or epoch > partition.leader_epoch or (latest is not None and epoch <= latest):
        return epochs.end_of(epoch, end)
    return (epoch if latest is None or epoch == partition.leader_epoch else latest), end


async def _offset_at(partition: Partition, timestamp: int, isolation_level: int) -> TimedOffset | None:
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
        is_empty = log.start_offset == log.end_offset
        epoch = partition.leader_epoch if is_empty else log.epochs.epoch_at(log.start_offset)
        return TimedOffset(log.start_offset, -1, epoch)
    else:
        return None  # there are no tiers
    if found is None or found.offset < end:
        return found
    # What is not visible yet does not exist for a reader.
    partition.check_watermark()
    return None
