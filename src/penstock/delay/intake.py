"""Intake of one partition's companion: what its leader has written there and not yet applied to the timer index.

Three rules keep the order in which deliveries are noted true for every replica:

- A message is never due before what was already taken from the wheel (`_floor_ms`).
- Nothing is taken from the wheel that is due at or after something not applied yet (`earliest_due_ms`).
- A named message is not delivered while something that may cancel it is not applied yet (`may_cancel`).

The partition writes what `split`, `end_transaction` and `cancel` build before it awaits anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

from penstock.delay.batch_split import SplitPlan, split_batch
from penstock.delay.control_batches import cancellation, transaction_end
from penstock.delay.entries import due_of
from penstock.delay.timers import Timers
from penstock.records.batch import BatchHeader, read_header
from penstock.replication.companion_pair import Pair
from penstock.replication.partition import Partition

_FAR_MS = 1 << 62


class Intake:
    """Of one partition, while it leads."""

    def __init__(self, partition: Partition, timers: Timers) -> None:
        self._partition = partition
        self._timers = timers
        self._unapplied: deque[tuple[int, int]] = deque()
        """(offset, earliest due time) of what is in the companion and not applied yet."""
        self._names: dict[bytes, int] = {}
        """Timer ids that something not applied yet sets or cancels, and its offset."""
        self._any_name = -1
        """The offset of the last thing that may set or cancel any timer id: the end of a transaction."""
        self._producers: set[int] = set()
        """Producers with delayed records in an open transaction."""

    @property
    def earliest_due_ms(self) -> int:
        """Nothing that is not applied yet is due before."""
        return min((due_ms for _, due_ms in self._unapplied), default=_FAR_MS)

    def has_open_transaction(self, producer_id: int) -> bool:
        """Whether a producer has delayed records in an open transaction."""
        return producer_id in self._producers or producer_id in self._timers.open

    def may_cancel(self, names: Set[bytes | None]) -> bool:
        """Whether something that is not applied yet may cancel one of these timer ids."""
        return self._any_name >= self._timers.applied or not names.isdisjoint(self._names)

    def add(self, offset: int, due_ms: int) -> None:
        """Something is about to be written to the companion, of which nothing is due before `due_ms`."""
        self._unapplied.append((offset, due_ms))

    def split(self, plan: SplitPlan, header: BatchHeader, base_offset: int, leader_epoch: int) -> Pair:
        """The halves of a producer's batch."""
        halves = split_batch(header, plan, base_offset, leader_epoch, self._floor_ms)
        if header.is_transactional:
            self._producers.add(header.producer_id)
        else:
            self.add(base_offset, halves.earliest_due_ms)
            self._names.update(dict.fromkeys(halves.names, base_offset))
        return Pair(memoryview(halves.aside), memoryview(halves.kept))

    def end_transaction(self, marker: memoryview, base_offset: int, leader_epoch: int) -> Pair:
        """The marker that ends a transaction, and its copy for the companion."""
        not_before_ms = self._floor_ms + 1
        self._producers.discard(read_header(marker).producer_id)
        self.add(base_offset, not_before_ms)
        self._any_name = base_offset
        return transaction_end(marker, base_offset, leader_epoch, not_before_ms)

    def cancel(self, names: Sequence[bytes], now_ms: int, base_offset: int, leader_epoch: int) -> Pair:
        """The pair that cancels what waits under these timer ids."""
        self.add(base_offset, self._floor_ms)
        self._names.update(dict.fromkeys(names, base_offset))
        return cancellation(names, now_ms, base_offset, leader_epoch)

    def clear(self) -> None:
        """Another term begins: its leader applies all that is in the companion before it does anything else."""
        self._unapplied.clear()
        self._names.clear()
        self._any_name = -1
        self._producers.clear()

    def forget_applied(self) -> None:
        """Drops what has been applied, and what the partition's own log had no room for."""
        unapplied, applied, pair = self._unapplied, self._timers.applied, self._partition.pair
        while unapplied and unapplied[0][0] < applied:
            unapplied.popleft()
        if pair.is_being_written:
            return  # the end of the log does not include it yet
        end = min(self._partition.log.end_offset, self._timers.companion.end_offset)
        while unapplied and unapplied[-1][0] >= end:
            unapplied.pop()
        if self._names:
            kept = ((name, min(offset, end - 1)) for name, offset in self._names.items())
            self._names = {name: offset for name, offset in kept if offset >= applied}
        self._any_name = min(self._any_name, end - 1)

    @property
    def _floor_ms(self) -> int:
        """When the last message is due that was taken from the wheel."""
        return due_of(self._timers.index.wheel.mark)
