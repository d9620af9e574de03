"""Folders of brokers: how large they are, how much is free, what each partition takes, and its log segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.admin.cluster_nodes import cluster_nodes
from penstock.admin.connection import AdminConnection
from penstock.admin.errors import AdminError
from penstock.admin.results import Results
from penstock.admin.wire import call
from penstock.errors import Code, code_from
from penstock.ids import TopicPartition
from penstock.protocol import apis
from penstock.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribedSegment,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_VERSION = 4
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class LogDir:
    """A folder of a broker."""

    path: str
    total_bytes: int | None
    """Of the disk that it is on; None if the broker does not tell."""
    usable_bytes: int | None
    sizes: Mapping[TopicPartition, int]
    """Bytes of each partition in it."""

    @property
    def used_bytes(self) -> int:
        """By partitions."""
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A part of a log that is stored, and removed, as one."""

    base_offset: int
    end_offset: int
    """One past its last offset."""
    size_bytes: int
    first_ms: int | None
    """The timestamp of its first batch."""
    newest_ms: int | None
    """Its largest timestamp; retention by time counts from it."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The log of a replica on one broker."""

    partition: TopicPartition
    size_bytes: int
    """Delayed messages included, which are in segments of their own."""
    segments: tuple[LogSegment, ...]
    """Ascending; none if nothing was ever appended, or the broker does not tell of them."""


class LogDirOperations:
    """Asks each broker about its folders. The client library lacks the request, so it goes over a socket of our own
    (`wire`).
    """

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def describe(self) -> Results[int, tuple[LogDir, ...]]:
        """The folders of each broker that is in the cluster."""
        return self._ask(DescribeLogDirsRequest()).map(_folders)

    def segments(self, partitions: Iterable[TopicPartition]) -> Results[int, tuple[ReplicaLog, ...]]:
        """The logs of these partitions by broker, with the segments of each. Brokers of another make tell of none."""
        wanted: dict[str, list[int]] = {}
        for at in dict.fromkeys(partitions):
            wanted.setdefault(at.topic, []).append(at.partition)
        if not wanted:
            return Results()
        topics = tuple(
            DescribableLogDirTopic(topic=topic, partitions=tuple(indexes)) for topic, indexes in wanted.items()
        )
        return self._ask(DescribeLogDirsRequest(topics=topics, include_segments=True)).map(_replica_logs)

    def _ask(self, request: DescribeLogDirsRequest) -> Results[int, DescribeLogDirsResponse]:
        """Of each broker that is in the cluster."""
        deadline = self._connection.deadline()
        values: dict[int, DescribeLogDirsResponse] = {}
        errors: dict[int, AdminError] = {}
        for id, address in cluster_nodes(self._connection, deadline).addresses.items():
            try:
                told = call(
                    address,
                    apis.DESCRIBE_LOG_DIRS,
                    _VERSION,
                    request,
                    DescribeLogDirsResponse,
                    self._connection.settings,
                    deadline,
                )
                if told.error_code != Code.NONE:
                    raise AdminError(code_from(told.error_code).name, "the broker does not list its folders")
                values[id] = told
            except AdminError as error:
                errors[id] = error
        return Results(values, errors)


def _replica_logs(told: DescribeLogDirsResponse) -> tuple[ReplicaLog, ...]:
    return tuple(
        ReplicaLog(
            TopicPartition(topic.name, partition.partition_index),
            partition.partition_size,
            tuple(_segment(each) for each in partition.segments),
        )
        for folder in told.results
        for topic in folder.topics
        for partition in topic.partitions
    )


def _segment(told: DescribedSegment) -> LogSegment:
    return LogSegment(
        told.base_offset,
        told.end_offset,
        told.size,
        None if told.first_timestamp < 0 else told.first_timestamp,
        None if told.max_timestamp < 0 else told.max_timestamp,
    )


def _folders(told: DescribeLogDirsResponse) -> tuple[LogDir, ...]:
    return tuple(
        LogDir(
            each.log_dir,
            None if each.total_bytes == _UNKNOWN else each.total_bytes,
            None if each.usable_bytes == _UNKNOWN else each.usable_bytes,
            {
                TopicPartition(topic.name, partition.partition_index): partition.partition_size
                for topic in each.topics
                for partition in topic.partitions
            },
        )
        for each in told.results
    )
