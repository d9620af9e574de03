"""One partition's timers at work: takes in what the companion has, and delivers what is due while the partition leads.

What is delivered and noted is one pair. Three things keep the order in which it is noted true for everybody:

- A leader does nothing before it has taken in all that its companion had when it began (`ready`).
- What is put aside is never due before what was taken from the wheel; and nothing is taken that is due at or after
  something that was put aside and is not taken in yet (`_barrier`).
- A message that has a name is not delivered while something is not taken in yet that may cancel it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.clock import Clock
from penstock.delay import parting
from penstock.delay.contents import name_in, occurrence, recurrence_in
from penstock.delay.entries import PLACE_BYTES, due_of, is_named, recurs
from penstock.delay.lateness import Lateness
from penstock.delay.moving import Moving
from penstock.delay.notes import Delivered, cancelling, delivery, end_of_transaction
from penstock.delay.parting import Plan
from penstock.delay.runs import DamagedRunError
from penstock.delay.showing import Listing
from penstock.delay.timers import Timers
from penstock.errors import ApiError, PenstockError, StorageError
from penstock.logs import fields
from penstock.records.batch import BatchHeader
from penstock.recurrence import RecurrenceError
from penstock.replication.beside import Pair
from penstock.replication.partition import Partition
from penstock.replication.waiting import another_leads

logger = logging.getLogger(__name__)

_BATCH_MESSAGES = 1000
_BATCH_BYTES = 512 << 10
_AHEAD_MS = 120_000
"""So much of what is to come is in the wheel, or half of it."""
_LONGEST_WAIT_S = 60.0
_BACK_OFF_S = 1.0
_PATIENCE_S = 5.0
_FAR = 1 << 62
_NOT_KNOWN = -1


class Keeper:
    """Owns one task; `close` ends it."""

    def __init__(self, partition: Partition, timers: Timers, clock: Clock, lateness: Lateness) -> None:
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
        self._term = -1
        self._ready_at = 0
        """A leader is ready when it has taken in everything below."""
        self._beginnings = partition.beside.beginnings
        """The index is of the companion that has begun so many times; if not, it is made anew."""
        self._put_aside: deque[tuple[int, int]] = deque()
        """(offset, earliest due time) of what is in the companion and not taken in yet."""
        self._names: dict[bytes, int] = {}
        """Names that something at this offset concerns which is not taken in yet."""
        self._any_name = -1
        """The offset of the last thing that concerns names nobody knows."""
        self._producers: set[int] = set()
        """Those who have put something aside in a transaction that is open."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._merging: asyncio.Task[None] | None = None
        self._moved_ms = clock.monotonic_ms()
        self._moving = Moving(partition, timers, clock, lambda *place: self._put_aside.append(place))
        partition.park(self)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"timers {partition.topic_partition}")

    def grew(self, appended_bytes: int) -> None:
        """The partition has more, or another role."""
        timers = self.timers
        if timers.companion.end_offset > timers.applied or self._term != self.partition.term:
            self._changed.set()

    async def close(self) -> None:
        self._is_closing = True
        self._changed.set()
        await asyncio.wait({self._task})
        self.partition.unpark(self)

    async def ready(self) -> None:
        """Returns when this leader knows what its companion says."""
        await self._until(lambda: self.is_ready)

    async def caught_up(self) -> None:
        """Returns when this leader knows all that was acknowledged before; ApiError if that takes long."""
        end = min(self.partition.high_watermark, self.timers.companion.end_offset)
        try:
            await asyncio.wait_for(self._until(lambda: self.is_ready and self.timers.applied >= end), _PATIENCE_S)
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
    def is_ready(self) -> bool:
        return (
            self._has_started
            and self._term == self.partition.term
            and self.partition.leadership is not None
            and self._beginnings == self.partition.beside.beginnings
            and self.timers.applied >= self._ready_at
        )

    def part(
        self, found: Plan, batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> memoryview:
        """Puts the records aside that wait; gives what stays."""
        self._check_ready()
        floor_ms = due_of(self.timers.index.wheel.mark)
        halves = parting.part(header, found, base_offset, leader_epoch, floor_ms)
        self.timers.companion.put(memoryview(halves.aside))
        if header.is_transactional:
            self._producers.add(header.producer_id)
        else:
            self._put_aside.append((base_offset, halves.earliest_due_ms))
            self._names.update(dict.fromkeys(halves.names, base_offset))
        return memoryview(halves.kept)

    async def give_up(self, names: Sequence[bytes]) -> None:
        """Cancels what waits under these names, on behalf of a batch that goes elsewhere."""
        await self.ready()

        def make(base_offset: int, leader_epoch: int) -> Pair | None:
            if not self.is_ready:
                return None
            self._put_aside.append((base_offset, due_of(self.timers.index.wheel.mark)))
            self._names.update(dict.fromkeys(names, base_offset))
            return cancelling(names, self._clock.now_ms(), base_offset, leader_epoch)

        if not await self.partition.append_pair(make):
            raise another_leads()

    def knows(self, producer_id: int) -> bool:
        """Whether a producer has put something aside in a transaction that is open."""
        return producer_id in self._producers or producer_id in self.timers.open

    def end_transaction(
        self, batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> memoryview:
        """Notes the end of a transaction in the companion; gives its marker."""
        self._check_ready()
        floor_ms = due_of(self.timers.index.wheel.mark) + 1
        pair = end_of_transaction(batch, header, floor_ms)
        self.timers.companion.put(pair.aside)
        self._producers.discard(header.producer_id)
        self._put_aside.append((base_offset, floor_ms))
        self._any_name = base_offset
        return pair.kept

    def _check_ready(self) -> None:
        if not self.is_ready:
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
                    logger.exception("timers failed", extra=fields(log=str(self.partition.topic_partition)))
                    wait_s = self._failed(StorageError(str(error)))
                self._wake()
                if self._changed.is_set():
                    continue
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait_s)
        finally:
            await self._end()

    async def _step(self) -> float:
        """Does what is to be done now; gives the seconds until there is more."""
        partition, timers = self.partition, self.timers
        if not self._has_started:
            await timers.start()
            self._has_started = True
        if self._beginnings != partition.beside.beginnings:
            self._beginnings = partition.beside.beginnings
            await timers.restart()
        if self._term != partition.term:
            self._begin_term()
        while await timers.take_in(partition.high_watermark):
            self._taken_in()
            if self._is_closing:
                return 0
        self._taken_in()
        self._wake()
        now_ms = self._clock.monotonic_ms()
        if await timers.save_if_due(now_ms):
            self._merge_soon()
        if self.is_ready and now_ms - self._moved_ms >= timers.saving.move_every_ms:
            self._moved_ms = now_ms
            await self._moving.forward(lambda: self.is_ready)
        return await self._deliver() if self.is_ready else _LONGEST_WAIT_S

    def _begin_term(self) -> None:
        """What an earlier leader, perhaps ourselves, has taken and not delivered is taken again."""
        self._term = self.partition.term
        # What has no other half yet will be taken back.
        self._ready_at = min(self.timers.companion.end_offset, self.partition.log.end_offset)
        self._put_aside.clear()
        self._names.clear()
        self._any_name = -1
        self._producers.clear()
        self.timers.index.rewind()

    def _taken_in(self) -> None:
        applied = self.timers.applied
        while self._put_aside and self._put_aside[0][0] < applied:
            self._put_aside.popleft()
        # What found no room in the partition's own log is taken back, and is not waited for.
        end = min(self.partition.log.end_offset, self.timers.companion.end_offset)
        while self._put_aside and self._put_aside[-1][0] >= end:
            self._put_aside.pop()
        if self._names:
            kept = ((name, min(offset, end - 1)) for name, offset in self._names.items())
            self._names = {name: offset for name, offset in kept if offset >= applied}
        self._any_name = min(self._any_name, end - 1)

    def _barrier(self) -> int:
        return min((due_ms for _, due_ms in self._put_aside), default=_FAR)

    async def _deliver(self) -> float:
        """Delivers all that is due; gives the seconds until the next is."""
        index = self.timers.index
        while not self._is_closing and self.is_ready:
            await self.partition.beside.mend()
            self._taken_in()
            now_ms = self._clock.now_ms()
            if index.horizon_ms < now_ms + _AHEAD_MS // 2:
                await index.reach(now_ms + _AHEAD_MS)
            entries = index.wheel.take(min(now_ms, self._barrier() - 1), _BATCH_MESSAGES, _BATCH_BYTES)
            if not entries:
                next_ms = index.wheel.next_due()
                if next_ms is None or next_ms >= index.horizon_ms:
                    next_ms = index.horizon_ms - _AHEAD_MS // 2
                if next_ms <= now_ms and index.horizon_ms > now_ms:
                    return _LONGEST_WAIT_S  # something is not taken in yet; whoever does that wakes us
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
        while names and self._may_be_cancelled(names):
            # Whoever leads raises the high watermark; until then nothing can be decided.
            await self._take_in_more()
            if self._is_closing or not self.is_ready:
                return False
        term = self.partition.term

        def make(base_offset: int, leader_epoch: int) -> Pair | None:
            if self.partition.term != term or not self.is_ready or (names and self._may_be_cancelled(names)):
                return None
            now_ms = self._clock.now_ms()
            done = Delivered(entries[-1], now_ms, {})
            delivered = self._contents(entries, contents, done, base_offset)
            self.delivered += len(delivered)
            self._lateness.count(entries, now_ms)
            return delivery(delivered, done, base_offset, leader_epoch)

        while not await self.partition.append_pair(make):
            if self.partition.term != term or not self.is_ready:
                return False
            await self._take_in_more()
        return True

    async def _take_in_more(self) -> None:
        self._changed.clear()
        await self.partition.beside.mend()
        if not await self.timers.take_in(self.partition.high_watermark):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _BACK_OFF_S)
        self._taken_in()

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
                    "a delayed message is damaged and not delivered",
                    extra=fields(log=str(self.timers.companion.topic_partition), due_ms=due_of(entry)),
                )
                continue
            if recurs(entry):
                due_ms = due_of(entry)
                try:
                    recurrence = recurrence_in(content)
                    if recurrence is not None:
                        again_ms = done.again[entry[:PLACE_BYTES]] = recurrence.next_after(due_ms, done.now_ms)
                        self._put_aside.append((base_offset, again_ms))
                except RecurrenceError as error:
                    logger.warning(
                        "a schedule has come to its end",
                        extra=fields(log=str(self.timers.companion.topic_partition), reason=str(error)),
                    )
                content = occurrence(content, due_ms)
            delivered.append(content)
        return delivered

    def _may_be_cancelled(self, names: set[bytes | None]) -> bool:
        return self._any_name >= self.timers.applied or not names.isdisjoint(self._names)

    def _failed(self, error: PenstockError | OSError) -> float:
        if isinstance(error, ApiError) and self.partition.leadership is None:
            return _LONGEST_WAIT_S
        self._failure = error if isinstance(error, PenstockError) else StorageError(str(error))
        if isinstance(error, DamagedRunError):
            self._beginnings = _NOT_KNOWN
        # What was taken from the wheel may not be delivered.
        self._term = -1
        logger.error("timers are held up", extra=fields(log=str(self.partition.topic_partition), reason=str(error)))
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
                self._changed.set()  # somebody may wait for what is let go by that
        except (OSError, StorageError) as error:
            logger.error(
                "runs of timers not merged", extra=fields(log=str(self.partition.topic_partition), error=str(error))
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
