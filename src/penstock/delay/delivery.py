"""Delivery of one partition's delayed messages, while the partition leads.

One task applies what the companion has to the timer index and delivers what is due. A delivery and the note that it
happened are one pair, written to both logs. A leader delivers nothing, and takes no delayed records, before it has
applied all that its companion had when its term began, or when it was read again from a database (`ready`); `intake`
has the rules for what comes after.

If the clock is behind what was delivered, the mark is reset before anything else is put aside (`mark_reset`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.clock import Clock
from penstock.delay.batch_split import SplitPlan
from penstock.delay.contents import name_in, occurrence, recurrence_in
from penstock.delay.control_batches import Delivered, delivery
from penstock.delay.entries import PLACE_BYTES, due_of, is_named, recurs
from penstock.delay.intake import Intake
from penstock.delay.lateness import Lateness
from penstock.delay.listing import Listing
from penstock.delay.mark_reset import MarkResetting, ResetLog
from penstock.delay.relocation import Relocation
from penstock.delay.sorted_runs import DamagedRunError
from penstock.delay.timers import Timers
from penstock.errors import ApiError, PenstockError, StorageError
from penstock.logs import fields
from penstock.records.batch import BatchHeader, read_header
from penstock.recurrence import RecurrenceError
from penstock.replication.companion_pair import Pair
from penstock.replication.partition import Partition
from penstock.replication.waiters import another_leads

logger = logging.getLogger(__name__)

_BATCH_MESSAGES = 1000
_BATCH_BYTES = 512 << 10
_AHEAD_MS = 120_000
"""So much of what is to come is in the wheel, or half of it."""
_LONGEST_WAIT_S = 60.0
_BACK_OFF_S = 1.0
_PATIENCE_S = 5.0
_NOT_KNOWN = -1


class Delivery:
    """Delivers the messages of one partition; owns one task, which `close` ends."""

    def __init__(
        self, partition: Partition, timers: Timers, clock: Clock, lateness: Lateness, resets: ResetLog
    ) -> None:
        self.partition = partition
        self.timers = timers
        self.listing = Listing(timers)
        self.delivered = 0
        self.damaged = 0
        self._lateness = lateness
        self._clock = clock
        self._changed = asyncio.Event()
        self._is_closing = False
        self._has_started = False
        self._failure: PenstockError | None = None
        self._failing_since_ms = 0
        self._term = -1
        self._ready_at = 0
        """A leader is ready when it has taken in everything below."""
        self._beginnings = partition.pair.beginnings
        """The index is of the companion that has begun so many times; if not, it is made anew."""
        self._reloads = timers.companion.reloads
        # A producer that gives up after a COMMIT without an answer makes no other append that would wake this task.
        timers.companion.on_reload = self._changed.set
        self._intake = Intake(partition, timers)
        self._waiting: set[asyncio.Future[None]] = set()
        self._merging: asyncio.Task[None] | None = None
        self._moved_ms = clock.monotonic_ms()
        self._relocation = Relocation(partition, timers, clock, self._intake)
        self._resetting = MarkResetting(partition, timers, clock, resets, self._intake)
        partition.park(self)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"timers {partition.topic_partition}")

    def grew(self, appended_bytes: int) -> None:
        """The partition has more, or another role."""
        timers = self.timers
        if timers.companion.end_offset > timers.applied or self._term != self.partition.term:
            self._changed.set()

    def clock_jumped(self) -> None:
        """What is due has to be looked at again."""
        self._changed.set()

    async def close(self) -> None:
        self._is_closing = True
        self._changed.set()
        await asyncio.wait({self._task})
        self.partition.unpark(self)

    async def ready(self) -> None:
        """Returns when this leader knows what its companion says, and its clock is not behind what was delivered."""
        await self._until(lambda: self.is_ready and not self._resetting.is_wanted)

    async def caught_up(self) -> None:
        """Returns when this leader knows all that was acknowledged before; ApiError if that takes long."""
        end = min(self.partition.high_watermark, self.timers.companion.end_offset)
        if self.is_ready and self.timers.applied >= end:
            return
        # In a task of its own: the request that asks may be running outside any, and a time limit needs one.
        await asyncio.create_task(self._catch_up(end))

    async def _catch_up(self, end: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._until(lambda: self.is_ready and self.timers.applied >= end)
        except TimeoutError:
            raise another_leads() from None

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            if self.partition.leadership is None or self._is_closing:
                raise another_leads()
            if self._failure is not None:
                raise self._failure
            self._changed.set()
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(woken)
            try:
                await woken
            finally:
                self._waiting.discard(woken)

    @property
    def overdue_ms(self) -> int:
        """How long ago the oldest message was due that is not delivered; while timers fail, at least for how long."""
        if self.partition.leadership is None:
            return 0
        now_ms = self._clock.now_ms()
        due_ms = self.timers.index.wheel.oldest_due()
        since_ms = self._failing_since_ms if self._failure is not None else now_ms
        return max(0, now_ms - (since_ms if due_ms is None else min(since_ms, due_ms)))

    @property
    def all_damaged(self) -> int:
        """Contents that could not be delivered, and parts of the companion that could not be read."""
        return self.damaged + self.timers.damaged

    @property
    def is_ready(self) -> bool:
        return (
            self._has_started
            and self._term == self.partition.term
            and self.partition.leadership is not None
            and self._beginnings == self.partition.pair.beginnings
            and self._reloads == self.timers.companion.reloads
            and self.timers.applied >= self._ready_at
        )

    def split(self, plan: SplitPlan, header: BatchHeader, base_offset: int, leader_epoch: int) -> Pair:
        """The halves of a producer's batch; ApiError if this leader is not ready."""
        self._check_ready()
        return self._intake.split(plan, header, base_offset, leader_epoch)

    def split_marker(self, marker: memoryview, base_offset: int, leader_epoch: int) -> Pair | None:
        """A marker and its copy for the companion; None if its transaction has no delayed records."""
        if not self._intake.has_open_transaction(read_header(marker).producer_id):
            return None
        self._check_ready()
        return self._intake.end_transaction(marker, base_offset, leader_epoch)

    async def cancel(self, names: Sequence[bytes]) -> None:
        """Cancels what waits under these timer ids, on behalf of a batch that another partition gets."""
        await self.ready()
        async with self.partition.pair_append() as place:
            if not self.is_ready:
                raise another_leads()
            offset, epoch = place.base_offset, place.leader_epoch
            await place.write(self._intake.cancel(names, self._clock.now_ms(), offset, epoch))

    def _check_ready(self) -> None:
        if not self.is_ready or self._resetting.is_wanted:
            raise another_leads()

    async def _run(self) -> None:
        try:
            while not self._is_closing and not self.partition.is_gone:
                self._changed.clear()
                wait_s = _LONGEST_WAIT_S
                try:
                    wait_s = await self._step()
                    self._failure = None
                except (PenstockError, OSError) as error:
                    wait_s = self._failed(error)
                except Exception as error:
                    # Without this loop nothing would ever be delivered here again.
                    logger.exception(
                        "delivery of delayed messages failed", extra=fields(log=str(self.partition.topic_partition))
                    )
                    wait_s = self._failed(StorageError(str(error)))
                self._wake()
                if self._changed.is_set():
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            await self._end()

    async def _step(self) -> float:
        """Does what is to be done now; gives the seconds until there is more."""
        partition, timers = self.partition, self.timers
        if not self._has_started:
            await timers.start()
            self._has_started = True
        if self._beginnings != partition.pair.beginnings:
            self._beginnings = partition.pair.beginnings
            await timers.restart()
        if self._term != partition.term or self._reloads != timers.companion.reloads:
            async with partition.pair.writing():
                self._begin_term()
        if not self.is_ready:
            partition.notice_growth()
        while await timers.take_in(partition.high_watermark):
            self._intake.forget_applied()
            if self._is_closing:
                return 0
        self._intake.forget_applied()
        # What was written when the term began may have been taken back since.
        self._ready_at = min(self._ready_at, self._written_end)
        self._wake()
        now_ms = self._clock.monotonic_ms()
        if await timers.save_if_due(now_ms):
            self._merge_soon()
        if self.is_ready and now_ms - self._moved_ms >= timers.saving.move_every_ms:
            self._moved_ms = now_ms
            await self._relocation.forward(lambda: self.is_ready)
        if self.is_ready and self._resetting.is_wanted:
            await self._resetting.reset(lambda: self.is_ready)
        return await self._deliver() if self.is_ready else _LONGEST_WAIT_S

    @property
    def _written_end(self) -> int:
        """What has no other half yet will be taken back."""
        return min(self.timers.companion.end_offset, self.partition.log.end_offset)

    def _begin_term(self) -> None:
        """What an earlier leader, perhaps ourselves, has taken and not delivered is taken again. What the companion has
        since it was read again is not known to the intake, and so is applied first.
        """
        self._term = self.partition.term
        self._reloads = self.timers.companion.reloads
        self._ready_at = self._written_end
        self._intake.clear()
        self.timers.index.rewind()

    async def _deliver(self) -> float:
        """Delivers all that is due; gives the seconds until the next is."""
        index = self.timers.index
        while not self._is_closing and self.is_ready:
            await self.partition.pair.mend()
            self._intake.forget_applied()
            now_ms = self._clock.now_ms()
            if index.horizon_ms < now_ms + _AHEAD_MS // 2:
                await index.reach(now_ms + _AHEAD_MS)
            entries = index.wheel.take(min(now_ms, self._intake.earliest_due_ms - 1), _BATCH_MESSAGES, _BATCH_BYTES)
            if not entries:
                next_ms = index.wheel.next_due()
                if next_ms is None or next_ms >= index.horizon_ms:
                    next_ms = index.horizon_ms - _AHEAD_MS // 2
                if next_ms <= now_ms and index.horizon_ms > now_ms:
                    return _LONGEST_WAIT_S  # something is not taken in yet; the intake wakes this task
                return min(_LONGEST_WAIT_S, max(0.001, (next_ms - now_ms) / 1000))
            if not await self._deliver_these(entries):
                return 0.0
        return 0.0

    async def _deliver_these(self, entries: list[bytes]) -> bool:
        """Delivers what was taken from the wheel; False if this partition does not lead any more."""
        contents = await self.timers.contents(entries)
        names = {
            name_in(content)
            for entry, content in zip(entries, contents, strict=True)
            if content is not None and is_named(entry)
        }
        while names and self._intake.may_cancel(names):
            # The leader raises the high watermark; until then nothing can be decided.
            await self._take_in_more()
            if self._is_closing or not self.is_ready:
                return False
        term = self.partition.term
        while True:
            async with self.partition.pair_append() as place:
                if self.partition.term != term or not self.is_ready:
                    return False
                if not (names and self._intake.may_cancel(names)):
                    now_ms = self._clock.now_ms()
                    done = Delivered(entries[-1], now_ms, {})
                    delivered = self._contents(entries, contents, done, place.base_offset)
                    self.delivered += len(delivered)
                    self._lateness.count(entries, now_ms)
                    await place.write(delivery(delivered, done, place.base_offset, place.leader_epoch))
            if place.written_bytes:
                return True
            await self._take_in_more()

    async def _take_in_more(self) -> None:
        self._changed.clear()
        await self.partition.pair.mend()
        if not await self.timers.take_in(self.partition.high_watermark):
            with suppress(TimeoutError):
                async with asyncio.timeout(_BACK_OFF_S):
                    await self._changed.wait()
        self._intake.forget_applied()

    def _contents(
        self, entries: list[bytes], contents: list[bytes | None], done: Delivered, base_offset: int
    ) -> list[bytes]:
        """What is delivered of what was taken. When that is due again that recurs is noted, and not passed before that
        is taken in.
        """
        delivered = []
        late = self.timers.index.wheel.cancelled_late
        for entry, content in zip(entries, contents, strict=True):
            if entry[:PLACE_BYTES] in late:
                continue
            if content is None:
                self.damaged += 1
                logger.error(
                    "cannot deliver a delayed message: it is damaged",
                    extra=fields(log=str(self.timers.companion.topic_partition), due_ms=due_of(entry)),
                )
                continue
            if recurs(entry):
                due_ms = due_of(entry)
                try:
                    recurrence = recurrence_in(content)
                    if recurrence is not None:
                        again_ms = done.again[entry[:PLACE_BYTES]] = recurrence.next_after(due_ms, done.now_ms)
                        self._intake.add(base_offset, again_ms)
                except RecurrenceError as error:
                    logger.warning(
                        "a schedule has ended",
                        extra=fields(log=str(self.timers.companion.topic_partition), reason=str(error)),
                    )
                content = occurrence(content, due_ms)
            delivered.append(content)
        return delivered

    def _failed(self, error: PenstockError | OSError) -> float:
        if isinstance(error, ApiError) and self.partition.leadership is None:
            return _LONGEST_WAIT_S
        if self._failure is None:
            self._failing_since_ms = self._clock.now_ms()
        self._failure = error if isinstance(error, PenstockError) else StorageError(str(error))
        if isinstance(error, DamagedRunError):
            self._beginnings = _NOT_KNOWN
        # What was taken from the wheel may not be delivered.
        self._term = -1
        logger.error(
            "cannot deliver delayed messages; will retry",
            extra=fields(log=str(self.partition.topic_partition), reason=str(error)),
        )
        return _BACK_OFF_S

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)

    def _merge_soon(self) -> None:
        if self._merging is None or self._merging.done():
            self._merging = asyncio.get_running_loop().create_task(
                self._merge(), name=f"merge timers {self.partition.topic_partition}"
            )

    async def _merge(self) -> None:
        try:
            while not self._is_closing and await self.timers.index.merge():
                self._changed.set()  # a task may wait for what the merge lets go
        except (OSError, StorageError) as error:
            logger.error(
                "could not merge the runs of a timer index",
                extra=fields(log=str(self.partition.topic_partition), error=str(error)),
            )
            if isinstance(error, DamagedRunError):
                self._beginnings = _NOT_KNOWN
                self._changed.set()

    async def _end(self) -> None:
        if self._merging is not None:
            await asyncio.wait({self._merging})
        self._is_closing = True
        self._wake()
        if self._has_started and not self.partition.is_gone:
            await self.timers.save()
