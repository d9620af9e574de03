"""Resetting the mark of a partition whose leader's clock is behind it.

The mark lies in the future of the clock if the clock was ahead and has come back, or if an earlier leader's clock is
ahead of this one's. A new message must not wait for the mark, so the leader sets it back to the time of its clock, in
an entry of the companion that every replica takes in. What was delivered up to the old mark is not delivered again.

Messages keep the due times that they have. Schedules go on by the clock of now: see `next_time`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from penstock.clock import Clock
from penstock.delay.contents import Waits, changes, recurrence_in
from penstock.delay.control_batches import MarkReset, mark_reset
from penstock.delay.entries import PLACE_BYTES, base_of, due_of
from penstock.delay.intake import Intake
from penstock.delay.timers import Timers
from penstock.recurrence import Recurrence, RecurrenceError
from penstock.replication.partition import Partition

logger = logging.getLogger(__name__)

TOLERANCE_MS = 1000
"""A clock that is behind the mark by less is waited for: clocks of brokers are never quite the same."""
_QUIET_MS = 60_000
_DUE_BYTES = 6
_READ_ENTRIES = 1000


class ResetLog:
    """What all partitions of a broker say of resets: a warning at most once a minute, each counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned_ms: float | None = None
        self.count = 0

    def tell(self, partition: Partition, mark_ms: int, now_ms: int, moved: int) -> None:
        self.count += 1
        told_ms, is_first = self._clock.monotonic_ms(), self._warned_ms is None
        is_warning = is_first or told_ms - (self._warned_ms or 0) >= _QUIET_MS
        if is_warning:
            self._warned_ms = told_ms
        logger.log(
            logging.WARNING if is_warning else logging.INFO,
            "%s: delayed messages were delivered up to %s, %.1f s ahead of this broker's clock; the clock was ahead "
            "and has come back, or another broker's is ahead. New messages are due by this broker's clock; messages "
            "that were delivered are not delivered again; %d schedules go on earlier",
            partition.topic_partition,
            datetime.fromtimestamp(mark_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            (mark_ms - now_ms) / 1000,
            moved,
        )


class MarkResetting:
    """Of one partition, while it leads."""

    def __init__(
        self,
        partition: Partition,
        timers: Timers,
        clock: Clock,
        told: ResetLog,
        intake: Intake,
    ) -> None:
        self._partition = partition
        self._timers = timers
        self._clock = clock
        self._told = told
        self._intake = intake

    @property
    def is_wanted(self) -> bool:
        """Whether a new message might have to wait for the mark."""
        return due_of(self._timers.index.wheel.mark) > self._clock.now_ms() + TOLERANCE_MS

    async def reset(self, is_ready: Callable[[], bool]) -> None:
        """Writes the reset; it counts when it is taken in. Does nothing while anything else is not taken in yet: the
        intake asks again afterwards.
        """
        timers = self._timers
        read = timers.companion.end_offset
        if timers.applied < read:
            return
        mark_ms = due_of(timers.index.mark)
        if mark_ms <= self._clock.now_ms() + TOLERANCE_MS:
            # Nothing was delivered: what the wheel has passed was cancelled.
            timers.index.rewind()
            return
        now_ms = self._clock.now_ms()
        moved = await self._moved(await timers.index.recurring(), now_ms, mark_ms)
        async with self._partition.pair_append() as place:
            if not is_ready() or not timers.applied == timers.companion.end_offset == read:
                return
            self._intake.add(place.base_offset, 0)
            await place.write(mark_reset(MarkReset(now_ms, moved), place.base_offset, place.leader_epoch))
        self._told.tell(self._partition, mark_ms, now_ms, len(moved))

    async def _moved(self, entries: Sequence[bytes], now_ms: int, mark_ms: int) -> dict[bytes, int]:
        """The schedules that are due earlier by this clock."""
        moved: dict[bytes, int] = {}
        for start in range(0, len(entries), _READ_ENTRIES):
            some = entries[start : start + _READ_ENTRIES]
            for entry, content in zip(some, await self._timers.contents(list(some)), strict=True):
                if content is None:
                    continue
                try:
                    recurrence = recurrence_in(content)
                    if recurrence is None:
                        continue
                    due_ms = next_time(recurrence, due_of(entry), now_ms, mark_ms)
                except RecurrenceError:
                    continue
                if due_ms < due_of(entry) and await self._was_delivered(entry):
                    moved[entry] = due_ms
        return moved

    async def _was_delivered(self, entry: bytes) -> bool:
        """Whether a schedule's first time has passed; until then it is due when it was said to be."""
        companion, base = self._timers.companion, base_of(entry)
        for batch, header, position in (await companion.read(base, 1, companion.end_offset)).batches():
            for change in changes(batch, header, position):
                if isinstance(change, Waits) and change.entry[_DUE_BYTES:PLACE_BYTES] == entry[_DUE_BYTES:PLACE_BYTES]:
                    return due_of(change.entry) < due_of(entry)
        return False


def next_time(recurrence: Recurrence, due_ms: int, now_ms: int, mark_ms: int) -> int:
    """When a schedule is due by a clock that says `now_ms`, of which everything up to `mark_ms` was delivered.

    If its times are further apart than the clock was ahead, at most one of them was passed; that was delivered and does
    not come again. Otherwise several may have been passed with one delivery, and it goes on from now.
    """
    first_ms = recurrence.first_after(now_ms, due_ms)
    if recurrence.next_after(first_ms, first_ms) - first_ms > mark_ms - now_ms:
        first_ms = recurrence.first_after(mark_ms, due_ms)
    return min(first_ms, due_ms)
