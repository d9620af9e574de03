"""What a fetch may see of a partition: consumers up to the high watermark or last stable offset, followers everything.

There is one object for each request. The fetch handler asks it where a partition ends, to read, and to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.replication.divergence import Position
from penstock.replication.leadership import Heard
from penstock.replication.partition import Partition
from penstock.replication.waiters import Waiter
from penstock.storage.contract import NOTHING, ReplicaBehindError, Slice

NO_REPLICA = -1
_NO_RECORDS = NOTHING._replace(aborted=[])
"""No records and no aborted transactions, for a read_committed reader."""

Nearest = Callable[[Partition, str, str], int]
"""The replica that a client in a rack, at a listener, should read from; NO_REPLICA if that is the leader."""


class PartitionSnapshot(NamedTuple):
    """A partition before it was read: while this stays the same, another read gives the same."""

    end: int
    """What could be seen of it."""
    high_watermark: int
    start: int
    term: int
    leader_epoch: int

    @classmethod
    def of(cls, partition: Partition, end: int) -> PartitionSnapshot:
        log_start = partition.log.start_offset
        return cls(end, partition.high_watermark, log_start, partition.term, partition.leader_epoch)


class PartitionReads(Protocol):
    """What one fetch may read."""

    def end_of(self, partition: Partition) -> int:
        """What can be seen of the partition now ends here."""
        ...

    async def read(self, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool) -> FetchResult:
        """At most `room` bytes, or one batch if this is the first partition that has something."""
        ...

    def park(self, partition: Partition, waiter: Waiter) -> None:
        """Has `waiter` told when there is more to see."""
        ...


class ConsumerReads:
    """A consumer reads from the leader, or from the replica in its rack that the leader has named (KIP-392)."""

    def __init__(self, *, committed_only: bool, rack: str, listener: str, nearest: Nearest) -> None:
        self.committed_only = committed_only
        self._rack = rack
        self._listener = listener
        self._nearest = nearest

    def end_of(self, partition: Partition) -> int:
        return partition.last_stable_offset if self.committed_only else partition.high_watermark

    def admitted(self, partition: Partition, wanted: FetchPartition) -> int:
        """The replica that the client should rather ask, NO_REPLICA if it may read here; ApiError if it may not."""
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.leadership is None and not self._rack:
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER)
        if partition.leadership is not None:
            partition.check_leads()
        if self._rack and partition.leadership is not None:
            return self._nearest(partition, self._rack, self._listener)
        return NO_REPLICA

    async def read(self, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool) -> FetchResult:
        preferred = self.admitted(partition, wanted)
        high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
        found = _NO_RECORDS if self.committed_only else NOTHING
        if (is_first or room > 0) and preferred == NO_REPLICA:
            try:
                read = await partition.read(
                    wanted.fetch_offset, min(wanted.max_bytes, room), committed_only=self.committed_only
                )
            except ReplicaBehindError:
                # It waits like one who is at the end, and asks again.
                read = found
            if read.size <= room or is_first:
                found = read
        return result_of(partition, wanted, high_watermark, last_stable_offset, found, preferred)

    def park(self, partition: Partition, waiter: Waiter) -> None:
        partition.park(waiter, committed_only=self.committed_only)


class FollowerReads:
    """A follower reads everything, and its fetch offset says what it has."""

    def __init__(self, follower: BrokerId, heard: Heard, may_have_caught_up: Callable[[], None]) -> None:
        self._follower = follower
        self._heard = heard
        self._may_have_caught_up = may_have_caught_up

    def end_of(self, partition: Partition) -> int:
        return partition.log.end_offset

    async def read(self, partition: Partition, wanted: FetchPartition, room: int, *, is_first: bool) -> FetchResult:
        partition.check_epoch(wanted.current_leader_epoch)
        asked = Position(wanted.fetch_offset, wanted.last_fetched_epoch)
        high_watermark = partition.high_watermark
        try:
            divergence = partition.fetched_by(self._follower, asked, self._heard)
        except ApiError as error:
            if error.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            # It has to know where to begin.
            refused = result_of(partition, wanted, high_watermark, high_watermark, NOTHING)
            return refused._replace(error_code=error.code, log_start_offset=partition.pair.start_offset)
        high_watermark = partition.high_watermark
        if divergence is not None:
            result = result_of(partition, wanted, high_watermark, high_watermark, NOTHING)
            return result._replace(diverging=divergence)
        leadership = partition.leadership
        if leadership is not None and self._follower not in leadership.in_sync:
            self._may_have_caught_up()
        found = NOTHING
        if (is_first or room > 0) and wanted.fetch_offset != partition.log.end_offset:
            read = await partition.read_for_follower(self._follower, wanted.fetch_offset, min(wanted.max_bytes, room))
            if read.size <= room or is_first:
                found = read
        return result_of(partition, wanted, high_watermark, high_watermark, found)


def result_of(
    partition: Partition,
    wanted: FetchPartition,
    high_watermark: int,
    last_stable_offset: int,
    found: Slice,
    preferred: int = NO_REPLICA,
) -> FetchResult:
    """The result of a partition: its offsets, and what was found."""
    return FetchResult(
        wanted.topic,
        wanted.topic_id,
        wanted.index,
        0,
        high_watermark,
        last_stable_offset,
        partition.log.start_offset,
        found.aborted,
        preferred,
        found.parts,
        found.size,
    )
