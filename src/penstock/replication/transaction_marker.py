"""The marker that ends a transaction, as it is written to every log that the transaction touched."""

from __future__ import annotations

from typing import NamedTuple

from penstock.replication.partition import Partition


class TransactionMarker(NamedTuple):
    """Commits or aborts what a producer has written; it also fences every earlier epoch of the producer."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int

    async def write_to(self, partition: Partition) -> None:
        await partition.append_marker(
            self.producer_id,
            self.producer_epoch,
            committed=self.is_commit,
            coordinator_epoch=self.coordinator_epoch,
        )
