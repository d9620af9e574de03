"""Where partitions begin and end, and which offset a time means in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import TopicPartition as LibraryPartition
from confluent_kafka.admin import OffsetSpec

from penstock.admin.connection import AdminConnection
from penstock.admin.errors import admin_error
from penstock.admin.positions import AtTime, OffsetBounds, Position
from penstock.admin.results import Results
from penstock.ids import TopicPartition
from penstock.sdk.kafka.list_offsets import list_offsets


class OffsetOperations:
    """Asks the leaders of partitions; retries while leaders change."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def earliest(self, partitions: Iterable[TopicPartition]) -> Results[TopicPartition, int]:
        """The first offset of each partition."""
        return self._list(dict.fromkeys(partitions, OffsetSpec.earliest()))  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[TopicPartition], *, committed: bool = False) -> Results[TopicPartition, int]:
        """The end of each partition: its high watermark, or its last stable offset if `committed`."""
        return self._list(dict.fromkeys(partitions, OffsetSpec.latest()), committed)  # type: ignore[no-untyped-call]

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> Results[TopicPartition, int | None]:
        """The first offset of each partition whose record is that young or younger; None if no record is."""
        asked = {at: OffsetSpec.for_timestamp(time_ms) for at, time_ms in times_ms.items()}
        return self._list(asked).map(lambda offset: offset if offset >= 0 else None)

    def ranges(self, partitions: Iterable[TopicPartition]) -> Results[TopicPartition, OffsetBounds]:
        """The first offset and the end of each partition."""
        starts = self.earliest(partitions)
        ends = self.latest(starts.values)
        found = {at: OffsetBounds(starts.values[at], end) for at, end in ends.values.items()}
        return Results(found, {**starts.errors, **ends.errors})

    def resolve(
        self, ranges: Mapping[TopicPartition, OffsetBounds], position: Position
    ) -> Results[TopicPartition, int]:
        """The offset of a position in each partition, whose range is known."""
        if not isinstance(position, AtTime):
            return Results({at: held.offset_of(position, None) for at, held in ranges.items()})
        times = self.at_times(dict.fromkeys(ranges, position.time_ms))
        found = {at: ranges[at].offset_of(position, offset) for at, offset in times.values.items()}
        return Results(found, times.errors)

    def _list(self, asked: Mapping[TopicPartition, Any], committed: bool = False) -> Results[TopicPartition, int]:
        wanted = {LibraryPartition(at.topic, at.partition): spec for at, spec in asked.items()}
        if not wanted:
            return Results()
        found = list_offsets(self._connection.client, wanted, self._connection.timeout_s, committed=committed)
        return Results(
            {TopicPartition(at.topic, at.partition): offset for at, offset in found.offsets.items()},
            {TopicPartition(at.topic, at.partition): admin_error(error) for at, error in found.errors.items()},
        )
