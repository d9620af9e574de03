"""A partition's own log and its companion, written and replicated as one.

An entry in both logs has a half in each, at the same offsets (`docs/internals/delay.md`); the companion's half is
always written first. Followers are sent both halves, the companion's first, and a bit in it says which log it belongs
to. A follower's position is the end of its own log; a cut of that log also cuts the companion.

The companion may reach further back than the partition's own log. A follower is then sent an empty batch instead of the
half that is gone. Leader epochs cannot be compared that far back, so the leader serves only followers that began there
with this leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from penstock.background_loop import shielded
from penstock.errors import StorageError
from penstock.ids import BrokerId
from penstock.parts import Part, size_of
from penstock.records.batch import (
    ASIDE_BIT,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    BatchHeader,
    read_header,
    with_header,
)
from penstock.replication.divergence import Position
from penstock.storage.contract import Log, Slice

T = TypeVar("T")
Make = Callable[[], Awaitable[Log]]
"""Makes a companion: an empty one, or in shared storage perhaps one that an earlier leader has made meanwhile."""


class Pair(NamedTuple):
    """Both halves of an entry, with their offsets and epoch."""

    aside: memoryview
    kept: memoryview


class PairAppend:
    """The place that the next pair gets; see `Partition.pair_append`."""

    __slots__ = ("_companion", "_main", "base_offset", "leader_epoch", "written_bytes")

    def __init__(self, main: Log, companion: Log, base_offset: int, leader_epoch: int) -> None:
        self._main = main
        self._companion = companion
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.written_bytes = 0
        """What the partition's own log has got; 0 until then."""

    async def write(self, pair: Pair) -> None:
        """Writes both halves, which carry the offset and the epoch of this place."""
        assert self._main.end_offset == self.base_offset
        await self._companion.write_stamped(pair.aside)
        await self._main.write_stamped(pair.kept)
        self.written_bytes = len(pair.kept)


async def _cannot_make() -> Log:
    raise StorageError("this partition cannot store delayed records")


class CompanionPair:
    """A log, and its companion if there is one."""

    __slots__ = ("_main", "_make", "_making", "_served", "beginnings", "companion", "write_lock")

    def __init__(self, main: Log, companion: Log | None = None, make: Make = _cannot_make) -> None:
        self.companion = companion
        self.beginnings = 0
        """How many times the companion has begun anew: what is known of its content is worth nothing then."""
        self._main = main
        self._make = make
        self._making = asyncio.Lock()
        self.write_lock = asyncio.Lock() if main.write_suspends else None
        """Held by every writer of either log, from the check of a batch to the end of its write; None if the engine
        needs no such lock.
        """
        self._served: dict[BrokerId, int] = {}
        """Followers that are sent what lies below the start of the partition's own log, and up to where."""

    @property
    def start_offset(self) -> int:
        """The lowest offset of which either log has something."""
        companion = self.companion
        if companion is None or companion.start_offset == companion.end_offset:
            return self._main.start_offset
        return min(self._main.start_offset, companion.start_offset)

    @property
    def size_bytes(self) -> int:
        """What both logs occupy."""
        return self._main.size_bytes + (0 if self.companion is None else self.companion.size_bytes)

    @property
    def can_write(self) -> bool:
        """Whether both logs take what is appended.

        Asks the disk instead of remembering the last append, because the next append may be far off: a broker that gave
        up its lead because the disk was full would give it up again each time it gets it back.
        """
        logs = [self._main] if self.companion is None else [self._main, self.companion]
        return all(log.failure is None and _has_room(log) for log in logs)

    @property
    def has_room(self) -> bool:
        """Whether there is room to speak of for both logs."""
        return _has_room(self._main) and (self.companion is None or _has_room(self.companion))

    @property
    def is_torn(self) -> bool:
        """Whether the companion has halves of batches for which the other log had no room. They must be gone before
        anything else is appended there: what lies at their offsets would be taken for their other half.
        """
        return self.companion is not None and self.companion.end_offset > self._main.end_offset

    def writing(self) -> AbstractAsyncContextManager[object]:
        """Holds the write lock, if the engine needs one."""
        return nullcontext() if self.write_lock is None else self.write_lock

    @property
    def is_being_written(self) -> bool:
        """Whether a write has begun and not ended: then the companion may be ahead of the other log for a moment."""
        return self.write_lock is not None and self.write_lock.locked()

    async def mend(self) -> None:
        """Returns when the companion has no half of a batch for which the other log had no room."""
        while self.is_torn:
            async with self.writing():
                await self.cut_torn()

    async def cut_torn(self) -> None:
        """Like `mend`, for one that is `writing`; it may await nothing else between this and its write."""
        while self.is_torn:
            await self._in_own_task(self._cut_torn())

    async def ensure(self) -> Log:
        """The companion; makes it if there is none."""
        if self.companion is not None:
            return self.companion
        return await self._in_own_task(self._ensure())

    async def _in_own_task(self, work: Coroutine[Any, Any, T]) -> T:
        """Brings work on the companion to its end, even if the task that waits for it is cancelled."""
        task = asyncio.get_running_loop().create_task(work, name=f"companion {self._main.topic_partition}")
        return await shielded(task)

    async def _ensure(self) -> Log:
        main = self._main
        async with self._making:
            if self.companion is None:
                try:
                    companion = await self._make()
                except OSError as error:  # its name may be too long, too
                    raise StorageError(f"no companion for {main.topic_partition}: {error}") from error
                if main.end_offset and not companion.end_offset:
                    await companion.begin_at(main.end_offset)
                main.sync_after(companion)
                self.companion = companion
        return self.companion

    async def _cut_torn(self) -> None:
        async with self._making:
            if self.companion is not None and self.is_torn:
                await self.companion.cut(self._main.end_offset)

    def role_changed(self) -> None:
        self._served.clear()

    async def append_as_is(self, batches: memoryview) -> None:
        """Takes over what a leader sent, halves of pairs included; the caller is `writing`."""
        own, aside = _sorted_out(batches)
        await self.cut_torn()
        if aside:
            companion = await self.ensure()
            await companion.append_as_is(memoryview(b"".join(aside)))
            batches = memoryview(b"".join(own))
        await self._main.append_as_is(batches)

    async def cut(self, end_offset: int) -> None:
        """Cuts both logs; the caller is `writing`."""
        # In this order: a half without its other one is cut at the next start, here and not there.
        await self._main.cut(end_offset)
        if self.companion is not None:
            await self.companion.cut(self._main.end_offset)

    async def begin_at(self, start_offset: int) -> None:
        """Empties both logs, which begin at `start_offset` from now on; the caller is `writing`."""
        await self._main.begin_at(start_offset)
        if self.companion is not None:
            self.beginnings += 1
            await self.companion.begin_at(start_offset)

    def serves_below_start(self, follower: BrokerId, asked: Position) -> bool:
        """Whether one that asks for what lies below the start of the partition's own log is given it."""
        begins = asked.offset == self.start_offset and asked.last_epoch < 0
        return begins or self._served.get(follower) == asked.offset

    async def read(self, follower: BrokerId, offset: int, max_bytes: int) -> Slice:
        """Batches of both logs, by offset; in a pair the companion's half comes first."""
        main, companion = self._main, self.companion
        if companion is None or offset >= companion.end_offset:
            return await main.read(offset, max_bytes, main.end_offset)
        parts: list[Part] = []
        size = 0
        while size < max_bytes and offset < main.end_offset:
            found = await companion.read(max(offset, companion.start_offset), 1, companion.end_offset)
            half = found.read()
            header = read_header(half) if half else None
            next_aside = main.end_offset if header is None else max(offset, header.base_offset)
            if offset < main.start_offset:
                if header is None or header.base_offset >= main.start_offset:
                    offset = main.start_offset
                    continue
                more: list[Part] = [half, bytes(_stand_in(header))]
                offset = header.next_offset
                self._served[follower] = offset
            elif header is not None and next_aside == offset:
                other = await main.read(offset, 1, main.end_offset)
                is_there = next(other.headers()).base_offset == header.base_offset
                more = [half, *(other.parts if is_there else (bytes(_stand_in(header)),))]
                offset = header.next_offset
            else:
                other = await main.read(offset, max_bytes - size, next_aside)
                if not other.size:
                    break
                more = list(other.parts)
                offset = max(each.next_offset for each in other.headers())
            parts += more
            size += size_of(more)
        return Slice(tuple(parts), size, offset)


def _has_room(log: Log) -> bool:
    return not log.disk_is_full or log.has_room()


def _sorted_out(batches: memoryview) -> tuple[list[memoryview], list[memoryview]]:
    """What belongs to the partition's own log, and what to its companion."""
    own: list[memoryview] = []
    aside: list[memoryview] = []
    position, size = 0, len(batches)
    while size - position >= HEADER_BYTES:
        header = read_header(batches, position)
        if header.size < HEADER_BYTES:
            break
        (aside if header.attributes & ASIDE_BIT else own).append(batches[position : position + header.size])
        position += header.size
    return own, aside


def _stand_in(header: BatchHeader) -> bytearray:
    """An empty batch in the place of a half that is gone from the partition's own log."""
    empty = header._replace(
        attributes=PAIRED_BIT,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )
    return with_header(empty, b"")
