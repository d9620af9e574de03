"""What a partition asks of whoever looks after delayed records, before it appends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.storage.contract import Parting

if TYPE_CHECKING:
    from penstock.replication.partition import Partition


class Delaying(Protocol):
    """Decides what is put aside."""

    def parting(self, partition: Partition, batch: memoryview) -> Parting | None:
        """How a producer's batch is parted; None if all of it is for now."""
        ...

    def parting_of_marker(self, partition: Partition, producer_id: int) -> Parting | None:
        """How the end of a transaction is noted in the companion; None if nothing of it is there."""
        ...

    async def ready(self, partition: Partition) -> None:
        """Returns when it is known what the companion says; ApiError if the partition does not lead."""
        ...

    def look_after(self, partition: Partition) -> None:
        """The partition has a companion."""
        ...

    async def give_up_names(self, partition: Partition, batch: memoryview) -> None:
        """What waits in a partition under a name that a batch gives or cancels no longer does, though the batch goes
        elsewhere.
        """
        ...

    async def gone(self, partition: Partition) -> None:
        """Returns when nothing of a partition that has gone is used any more."""
        ...


class _NoDelays:
    """Nothing is ever delayed: topics that only brokers write to."""

    def parting(self, partition: Partition, batch: memoryview) -> Parting | None:
        return None

    def parting_of_marker(self, partition: Partition, producer_id: int) -> Parting | None:
        return None

    async def ready(self, partition: Partition) -> None:
        return

    def look_after(self, partition: Partition) -> None:
        return

    async def give_up_names(self, partition: Partition, batch: memoryview) -> None:
        return

    async def gone(self, partition: Partition) -> None:
        return


NO_DELAYS = _NoDelays()
