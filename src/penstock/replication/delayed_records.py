"""What a partition asks about delayed records before it writes: the answers are values, and it writes them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.config.topic import TopicConfig
from penstock.records.batch import BatchHeader
from penstock.replication.companion_pair import Pair

if TYPE_CHECKING:
    from penstock.replication.partition import Partition


class DelayedRecords(Protocol):
    """Decides which records wait in the companion."""

    takes_delayed: bool
    """Whether records can be delayed at all."""

    def asks_for_delay(self, block: memoryview) -> bool:
        """Whether decompressed records may ask for a delay: a quick search, for every batch."""
        ...

    def delayed_in(self, config: TopicConfig, header: BatchHeader, block: memoryview) -> object:
        """What of a producer's batch with these records is for later, for `split`; None if all of it is for now.

        May be called in a thread.
        """
        ...

    def split(
        self, partition: Partition, delayed: object, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> Pair:
        """The two halves of a producer's batch that `delayed_in` found delayed records in; the partition writes them
        before it awaits anything else.
        """
        ...

    def split_marker(
        self, partition: Partition, marker: memoryview, base_offset: int, leader_epoch: int
    ) -> Pair | None:
        """The marker, and the copy of it that the companion gets, to be written like halves of a batch; None if the
        transaction has no delayed records here.
        """
        ...

    async def ready(self, partition: Partition) -> None:
        """Returns when this leader has applied all that is in the companion; ApiError if it does not lead."""
        ...

    def look_after(self, partition: Partition) -> None:
        """Starts the delivery of a partition that has a companion, unless it has been started."""
        ...

    async def cancel_timers(self, partition: Partition, batch: memoryview) -> None:
        """Cancels the messages that wait in a partition under timer ids that a batch for another partition sets or
        cancels.
        """
        ...

    async def gone(self, partition: Partition) -> None:
        """Returns when nothing uses a partition that has left this broker."""
        ...


class _NoDelays:
    """Nothing is ever delayed: topics that only brokers write to."""

    takes_delayed = False

    def asks_for_delay(self, block: memoryview) -> bool:
        return False

    def delayed_in(self, config: TopicConfig, header: BatchHeader, block: memoryview) -> object:
        return None

    def split(
        self, partition: Partition, delayed: object, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> Pair:
        raise AssertionError("nothing of an internal topic is delayed")

    def split_marker(
        self, partition: Partition, marker: memoryview, base_offset: int, leader_epoch: int
    ) -> Pair | None:
        return None

    async def ready(self, partition: Partition) -> None:
        return

    def look_after(self, partition: Partition) -> None:
        return

    async def cancel_timers(self, partition: Partition, batch: memoryview) -> None:
        return

    async def gone(self, partition: Partition) -> None:
        return


NO_DELAYS = _NoDelays()
