"""The companion log beside a partition's own, and the one stream in which both are replicated.

A pair is one entry in two logs at the same offsets (`docs/delay.md`): the half that is put aside is always written
first. Followers are sent both halves, that one first, and its bit says where it belongs. A follower's position is the
end of its own log, as ever; what is cut there is cut here.

Below the start of the partition's own log the companion may go on: then an empty batch stands in for the half that is
gone. That far back nobody can compare leader epochs, so only one who began there with this leader is served.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.errors import StorageError
from penstock.ids import BrokerId
from penstock.records.batch import (
    ASIDE_BIT,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    BatchHeader,
    read_header,
    with_header,
)
from penstock.replication.following import Position
from penstock.storage.companions import content_of
from penstock.storage.contract import Log, Part, Slice

Make = Callable[[], Awaitable[Log]]
"""Makes an empty companion."""


class Pair(NamedTuple):
    """Both halves of an entry, with their offsets and epoch."""

    aside: memoryview
    kept: memoryview


async def _cannot_make() -> Log:
    raise StorageError("there is no room for delayed records here")


class Beside:
    """The companion of one log, if there is one."""

    __slots__ = ("_main", "_make", "_making", "_served", "beginnings", "companion")

    def __init__(self, main: Log, companion: Log | None = None, make: Make = _cannot_make) -> None:
        self.companion = companion
        self.beginnings = 0
        """How many times the companion has begun anew: what is known of its content is worth nothing then."""
        self._main = main
        self._make = make
        self._making = asyncio.Lock()
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
        """Whether both logs take what is appended. The companion may not be written to for a long time, and then does
        not find out that there is room again.
        """
        companion = self.companion
        return self._main.can_write and (companion is None or (companion.failure is None and _has_room(companion)))

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

    async def mend(self) -> None:
        """Returns when both logs can be appended to; nothing may be awaited between this and the append."""
        while self.is_torn:
            await self.ensure()

    async def ensure(self) -> Log:
        """The companion, ready to take the other half of what is appended next."""
        if self.companion is not None and not self.is_torn:
            return self.companion
        # A task of its own: whoever waits may be cancelled, what was begun is brought to its end.
        making = asyncio.get_running_loop().create_task(self._ensure(), name=f"companion {self._main.topic_partition}")
        return await asyncio.shield(making)

    async def _ensure(self) -> Log:
        main = self._main
        async with self._making:
            if self.companion is None:
                try:
                    companion = await self._make()
                except OSError as error:  # its name may be too long, too
                    raise StorageError(f"no companion for {main.topic_partition}: {error}") from error
                if main.end_offset:
                    await companion.begin_at(main.end_offset)
                main.sync_after(companion)
                self.companion = companion
            if self.is_torn:
                await self.companion.cut(main.end_offset)
        return self.companion

    def role_changed(self) -> None:
        self._served.clear()

    async def append_as_is(self, batches: memoryview) -> None:
        """Takes over what a leader sent, halves of pairs included."""
        await self.mend()
        own, aside = _sorted_out(batches)
        if aside:
            companion = await self.ensure()
            await companion.append_as_is(memoryview(b"".join(aside)))
            batches = memoryview(b"".join(own))
        await self._main.append_as_is(batches)

    async def cut(self, end_offset: int) -> None:
        # In this order: a half without its other one is cut at the next start, here and not there.
        await self._main.cut(end_offset)
        if self.companion is not None:
            await self.companion.cut(self._main.end_offset)

    async def begin_at(self, start_offset: int) -> None:
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
            half = bytes(b"".join(map(content_of, found.parts)))
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
                is_there = read_header(content_of(other.parts[0])).base_offset == header.base_offset
                more = [half, *(other.parts if is_there else (bytes(_stand_in(header)),))]
                offset = header.next_offset
            else:
                other = await main.read(offset, max_bytes - size, next_aside)
                if not other.size:
                    break
                more = list(other.parts)
                offset = _end_of(other)
            parts += more
            size += sum(len(part) if isinstance(part, bytes) else part.size for part in more)
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


def _end_of(found: Slice) -> int:
    """The offset behind the last batch."""
    part, position = found.parts[-1], 0
    size = len(part) if isinstance(part, bytes) else part.size
    while True:
        if isinstance(part, bytes):
            header = read_header(part, position)
        else:
            header = read_header(os.pread(part.fileno(), HEADER_BYTES, part.position + position))
        position += header.size
        if size - position < HEADER_BYTES:
            return header.next_offset
