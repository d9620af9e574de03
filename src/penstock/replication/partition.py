"""One partition on this broker: its log, its leader epoch, its high watermark and who waits for it to rise."""

from __future__ import annotations

from typing import Protocol

from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition
from penstock.storage.contract import Appended, Log, Slice

ALL_IN_SYNC = -1
"""acks=all: the producer wants `min.insync.replicas` to have the batch."""


class Waiter(Protocol):
    """Somebody who is told when a partition has more to read, or is gone."""

    def grew(self, appended_bytes: int) -> None: ...


class Partition:
    """The leader's side of a partition.

    Invariant: high_watermark <= log.end_offset, and it never goes back. Readers see what lies below it.
    """

    __slots__ = ("_waiters", "high_watermark", "in_sync", "is_gone", "leader_epoch", "log")

    def __init__(self, log: Log, leader_epoch: int, in_sync: int) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.in_sync = in_sync
        """How many replicas are in sync, this one included."""
        self.high_watermark = log.visible_end
        self.is_gone = False
        self._waiters: set[Waiter] = set()

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def last_stable_offset(self) -> int:
        """What a read_committed reader may see: with no transaction open, all that is visible."""
        return self.high_watermark

    def check_epoch(self, epoch: int) -> None:
        """A client that knows of another leader epoch has to look at the metadata first; -1 means it does not say."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(Code.FENCED_LEADER_EPOCH, f"epoch {epoch} is over, the leader is in {self.leader_epoch}")
        raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is ahead of the leader's {self.leader_epoch}")

    async def append(self, batch: memoryview, acks: int) -> Appended:
        """Appends a producer's batch; on return it is acknowledged: readers see it, and it is as safe as the topic
        asks.
        """
        log = self.log
        if acks == ALL_IN_SYNC and self.in_sync < log.config.min_insync_replicas:
            raise ApiError(
                Code.NOT_ENOUGH_REPLICAS,
                f"{self.in_sync} replicas are in sync, the topic wants {log.config.min_insync_replicas}",
            )
        await log.admit()
        appended = await log.append(batch, self.leader_epoch)
        self._raise_watermark(len(batch))
        return appended

    async def read(self, offset: int, max_bytes: int) -> Slice:
        """Batches below the high watermark."""
        # An append whose producer went away before it was flushed has nobody else to do this.
        self._raise_watermark(0)
        high_watermark = self.high_watermark
        if offset > high_watermark:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {high_watermark}")
        return await self.log.read(offset, max_bytes, high_watermark)

    async def trim(self, offset: int) -> int:
        """Removes records below `offset` (-1: all that are visible) and gives the new start of the log."""
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not below the high watermark")
        if "delete" not in self.log.config.cleanup_policy:
            raise ApiError(Code.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        await self.log.trim(target)
        return self.log.start_offset

    def park(self, waiter: Waiter) -> None:
        self._waiters.add(waiter)

    def unpark(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def go(self) -> None:
        """The partition leaves this broker: whoever waits has to look again."""
        self.is_gone = True
        self._tell(1 << 62)

    def check_online(self) -> None:
        if self.is_gone:
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)

    def _raise_watermark(self, appended_bytes: int) -> None:
        visible = self.log.visible_end
        if visible > self.high_watermark:
            self.high_watermark = visible
            if self._waiters:
                self._tell(appended_bytes)

    def _tell(self, appended_bytes: int) -> None:
        for waiter in tuple(self._waiters):
            waiter.grew(appended_bytes)


def code_of(error: Exception) -> Code:
    """The Kafka code under which an error of a partition is answered."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, StorageError):
        return Code.KAFKA_STORAGE_ERROR
    raise error
