"""One partition on this broker: its log, its leader epoch, its high watermark and who waits for it to rise."""

from __future__ import annotations

from typing import Protocol

from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition
from penstock.storage.contract import Appended, Log, Slice

ALL_IN_SYNC = -1
"""acks=all: the producer wants `min.insync.replicas` to have the batch."""

_PLENTY = 1 << 62
"""More bytes than anybody waits for."""


class Waiter(Protocol):
    """Somebody who is told when a partition has more to read, or is gone."""

    def grew(self, appended_bytes: int) -> None: ...


class Partition:
    """The leader's side of a partition.

    Invariants: last_stable_offset <= high_watermark <= log.end_offset, and neither goes back. Readers see what lies
    below the high watermark; those that want only what is committed see what lies below the last stable offset.
    """

    __slots__ = (
        "_stable_waiters",
        "_told_stable",
        "_waiters",
        "high_watermark",
        "in_sync",
        "is_gone",
        "leader_epoch",
        "log",
    )

    def __init__(self, log: Log, leader_epoch: int, in_sync: int) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self.in_sync = in_sync
        """How many replicas are in sync, this one included."""
        self.high_watermark = log.visible_end
        self.is_gone = False
        self._waiters: set[Waiter] = set()
        self._stable_waiters: set[Waiter] = set()
        """Those who wait for the last stable offset to rise."""
        self._told_stable = self.last_stable_offset
        """The last stable offset when they were last told."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def last_stable_offset(self) -> int:
        """What a read_committed reader may see ends here: where the first transaction begins whose end is not known."""
        first_unstable = self.log.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return first_unstable

    def check_epoch(self, epoch: int) -> None:
        """A client that knows of another leader epoch has to look at the metadata first; -1 means it does not say."""
        if epoch < 0 or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(Code.FENCED_LEADER_EPOCH, f"epoch {epoch} is over, the leader is in {self.leader_epoch}")
        raise ApiError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is ahead of the leader's {self.leader_epoch}")

    async def append(self, batch: memoryview, acks: int, *, guard: int | None = None, is_own: bool = False) -> Appended:
        """Appends a producer's batch; on return it is acknowledged: readers see it, and it is as safe as the topic
        asks. What `guard` and `is_own` mean, `Log.append` says.
        """
        log = self.log
        if acks == ALL_IN_SYNC and self.in_sync < log.config.min_insync_replicas:
            raise ApiError(
                Code.NOT_ENOUGH_REPLICAS,
                f"{self.in_sync} replicas are in sync, the topic wants {log.config.min_insync_replicas}",
            )
        await log.admit()
        appended = await log.append(batch, self.leader_epoch, guard=guard, is_own=is_own)
        self._raise_watermark(len(batch))
        return appended

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> Appended:
        """Ends a producer's transaction; on return the marker is acknowledged like a batch, and who waits for what
        it makes stable is told.
        """
        await self.log.admit()
        appended = await self.log.append_marker(
            producer_id,
            producer_epoch,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=self.leader_epoch,
        )
        self._raise_watermark(0)
        return appended

    async def read(self, offset: int, max_bytes: int, *, committed_only: bool = False) -> Slice:
        """Batches below the high watermark or, with `committed_only`, below the last stable offset, together with
        the aborted transactions that are to be left out of them.
        """
        # An append whose producer went away before it was flushed has nobody else to do this.
        self._raise_watermark(0)
        high_watermark = self.high_watermark
        if offset > high_watermark:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {high_watermark}")
        if not committed_only:
            return await self.log.read(offset, max_bytes, high_watermark)
        aborted = self.log.producers.aborted
        while True:
            removals = aborted.removals
            found = await self.log.read(offset, max_bytes, self.last_stable_offset)
            # If entries were removed meanwhile, what was read may be older than the compaction that removed them.
            if aborted.removals == removals:
                return found._replace(aborted=self.log.aborted_transactions(offset, found.end_offset))

    async def trim(self, offset: int) -> int:
        """Removes records below `offset` (-1: all that are visible) and gives the new start of the log."""
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not below the high watermark")
        if "delete" not in self.log.config.cleanup_policy:
            raise ApiError(Code.POLICY_VIOLATION, "records of a topic that is only compacted cannot be deleted")
        await self.log.trim(target)
        self._tell_stable(_PLENTY)
        return self.log.start_offset

    def park(self, waiter: Waiter, *, committed_only: bool = False) -> None:
        """Tells `waiter` from now on when the high watermark, or the last stable offset, has risen."""
        if committed_only:
            self._told_stable = self.last_stable_offset
            self._stable_waiters.add(waiter)
        else:
            self._waiters.add(waiter)

    def unpark(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)
        self._stable_waiters.discard(waiter)

    def go(self) -> None:
        """The partition leaves this broker: whoever waits has to look again."""
        self.is_gone = True
        for waiter in (*self._waiters, *self._stable_waiters):
            waiter.grew(_PLENTY)

    def check_online(self) -> None:
        if self.is_gone:
            raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION)

    def _raise_watermark(self, appended_bytes: int) -> None:
        visible, before = self.log.visible_end, self.high_watermark
        if visible > before:
            self.high_watermark = visible
            for waiter in tuple(self._waiters) if self._waiters else ():
                waiter.grew(appended_bytes)
            if self._stable_waiters:
                # A marker makes visible what was appended long before it: nobody counted that, so all look again.
                is_counted = self._told_stable == before and self.last_stable_offset == visible
                self._tell_stable(appended_bytes if is_counted else _PLENTY)

    def _tell_stable(self, appended_bytes: int) -> None:
        stable = self.last_stable_offset
        if stable > self._told_stable:
            self._told_stable = stable
            for waiter in tuple(self._stable_waiters):
                waiter.grew(appended_bytes)


def code_of(error: Exception) -> Code:
    """The Kafka code under which an error of a partition is answered."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, StorageError):
        return Code.KAFKA_STORAGE_ERROR
    raise error
