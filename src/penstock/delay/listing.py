"""Listing the messages that wait in one partition: a search that the leader keeps while its fetch waits.

A listed message has its due time as timestamp and is otherwise as it was sent; a recurring one also has its schedule.
Listing removes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from penstock.delay.due_index import Contents
from penstock.delay.entries import due_of
from penstock.delay.index_files import HASH_BYTES
from penstock.delay.timer_pages import ListingPage, Numbered, Spot, end_of, first_number, read_page
from penstock.delay.timers import Timers
from penstock.errors import StorageError
from penstock.records.batch import new_header, with_header
from penstock.records.records import put_content

T = TypeVar("T")

IDS_END = 1 << 60
"""Above the offsets of all ids."""

_SPOTS = 64
"""Readers of one partition whose place is remembered."""
_TRIES = 10
_MAX_DELTA = (1 << 31) - 1
"""Of offsets in one batch."""


class Timed(NamedTuple):
    """A message that waits: its number, and when it is due."""

    number: int
    due_ms: int


class Listing:
    """Reads what waits in one partition, for all who ask."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self._spots: dict[int, Spot] = {}
        """Where those go on who have been given everything below a number."""

    async def page(self, number: int, max_bytes: int) -> tuple[ListingPage, int]:
        """What waits from a number on, and above all numbers."""
        start = self._spots.get(number, number)
        page, end = await self._read(lambda contents: (read_page(contents, start, max_bytes), end_of(contents)))
        if page.reached is not None:
            self._spots.pop(page.reached.number + 1, None)
            self._spots[page.reached.number + 1] = page.reached
            while len(self._spots) > _SPOTS:
                del self._spots[next(iter(self._spots))]
        return page, end

    async def end(self) -> int:
        """Above the numbers of all that waits."""
        return await self._read(end_of)

    async def find_time(self, due_ms: int) -> Timed | None:
        """The first that is due then or later."""
        start: Spot | int = first_number(due_ms)
        while True:
            page = await self._read(partial(read_page, start=start, max_bytes=0, from_ms=due_ms))
            if page.shown:
                return Timed(page.shown[0].number, due_of(page.shown[0].entry))
            if page.is_last or page.reached is None:
                return None
            start = page.reached

    async def _read(self, look: Callable[[Contents], T]) -> T:
        for _ in range(_TRIES):
            contents = await self.timers.index.contents()
            try:
                return await asyncio.to_thread(look, contents)
            except FileNotFoundError:
                continue  # runs were merged before they were opened: there are others now
        raise StorageError(f"the index of {self.timers.companion.topic_partition} cannot be read")


class Showing(Protocol):
    """What one fetch is shown of one partition."""

    leader_epoch: int
    size: int
    parts: list[bytes]
    position: int
    """Everything below has been looked at."""
    shown_end: int
    """Behind the last message that is shown."""
    end: int
    """Above all that there is to see."""
    is_at_end: bool

    async def advance(self, room: int) -> None:
        """Looks on."""
        ...


class ByDueTime:
    """Whatever waits, in the order in which it is due."""

    def __init__(self, listing: Listing, offset: int, leader_epoch: int) -> None:
        self._listing = listing
        self.leader_epoch = leader_epoch
        self.size = 0
        self.parts: list[bytes] = []
        self.position = self.shown_end = offset
        self.end = 0
        self.is_at_end = False

    async def advance(self, room: int) -> None:
        """Looks on, if nothing was found yet."""
        if self.size:
            return
        page, end = await self._listing.page(self.position, room)
        contents = await self._listing.timers.contents([found.entry for found in page.shown])
        sound = [(found, content) for found, content in zip(page.shown, contents, strict=True) if content is not None]
        self.parts = _batches(sound, self.leader_epoch)
        self.size = sum(map(len, self.parts))
        if sound:
            self.shown_end = sound[-1][0].number + 1
        if page.reached is not None:
            self.position = max(self.position, page.reached.number + 1)
        if page.is_last:
            self.position = max(self.position, end)
        self.end = max(self.position, end)
        self.is_at_end = page.is_last or bool(self.size)


class ById:
    """The messages that wait under the timer id whose hash is the requested offset, and no others."""

    def __init__(self, listing: Listing, offset: int, leader_epoch: int) -> None:
        self._timers = listing.timers
        self.leader_epoch = leader_epoch
        self.size = 0
        self.parts: list[bytes] = []
        self.position = self.shown_end = self.end = offset
        self.is_at_end = False

    async def advance(self, room: int) -> None:
        if self.size:
            return
        entries = []
        if self.position < IDS_END:
            id_hash = self.position.to_bytes(HASH_BYTES, "big")
            entries = self._timers.index.named(id_hash, await self._timers.index.in_runs([id_hash]))
        contents = await self._timers.contents(entries)
        sound = [
            (Numbered(self.position + number, entry), content)
            for number, (entry, content) in enumerate(zip(entries, contents, strict=True))
            if content is not None
        ]
        self.parts = _batches(sound, self.leader_epoch)
        self.size = sum(map(len, self.parts))
        if sound:
            self.position = self.shown_end = self.end = sound[-1][0].number + 1
        self.is_at_end = True


def _batches(messages: Sequence[tuple[Numbered, bytes]], leader_epoch: int) -> list[bytes]:
    """The messages as batches: their numbers are their offsets, and may lie far apart."""
    batches: list[bytes] = []
    start = 0
    for at in range(1, len(messages) + 1):
        if at == len(messages) or messages[at][0].number - messages[start][0].number > _MAX_DELTA:
            batches.append(_batch(messages[start:at], leader_epoch))
            start = at
    return batches


def _batch(messages: Sequence[tuple[Numbered, bytes]], leader_epoch: int) -> bytes:
    base_offset, base_ms = messages[0][0].number, due_of(messages[0][0].entry)
    last = messages[-1][0]
    records: list[bytes | memoryview] = []
    for (number, entry), content in messages:
        put_content(records, content, due_of(entry) - base_ms, number - base_offset)
    header = new_header(
        base_offset,
        leader_epoch,
        last_offset_delta=last.number - base_offset,
        base_timestamp=base_ms,
        max_timestamp=due_of(last.entry),
        record_count=len(messages),
    )
    return bytes(with_header(header, b"".join(records)))
