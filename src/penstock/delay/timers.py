"""What waits in one partition: made from its companion alone, up to the high watermark, the same on every replica.

The companion is read in order; every batch changes the index (`take_in`). A transaction's changes wait for its end.
After a crash the index is as it was saved, and the companion is read on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.delay.contents import Cancels, Change, Waits, changes, hash_of, name_in, recurrence_in
from penstock.delay.dueindex import DueIndex
from penstock.delay.entries import at_due, delayed_to, due_of, unpack
from penstock.delay.indexfiles import SAVE_AFTER
from penstock.delay.notes import MOVED_BIT, NOTE_BIT, read_delivered, read_moved
from penstock.delay.recurrence import RecurrenceError
from penstock.logs import fields
from penstock.records.batch import HEADER_BYTES, BatchHeader, read_header
from penstock.records.control import read_marker
from penstock.storage.companions import content_of
from penstock.storage.contract import Log, Piece, Slice

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


class Saving(NamedTuple):
    """How much may have to be read again after a crash, before the index is written to disk."""

    entries: int = SAVE_AFTER
    bytes: int = 8 << 20
    every_ms: int = 60_000
    move_every_ms: int = 600_000
    """How often messages are moved out of old segments of which little is left."""
    move_from_bytes: int = 256 << 20
    """A companion that is smaller is left as it is."""


class Timers:
    """The state of one partition's companion."""

    def __init__(self, main: Log, companion: Log, index: DueIndex, saving: Saving) -> None:
        self._main = main
        self.saving = saving
        self.companion = companion
        self.index = index
        self.applied = -1
        """Everything of the companion below this offset is taken in."""
        self.open: dict[int, tuple[int, list[Change]]] = {}
        """Transactions whose end is not known: where each begins, and what it changes."""
        self._read_bytes = 0
        """How much would have to be read again after a crash."""
        self._saved_ms: float | None = None

    async def start(self) -> None:
        """Brings the index back; it is worth nothing if the companion has begun anew since it was saved."""
        await self.index.open()
        if not self.companion.start_offset <= self.index.read_from <= self.companion.end_offset:
            await self.index.clear()
        self.applied = max(self.index.read_from, self.companion.start_offset)
        self.open = {producer: (start, []) for producer, start in self.index.open_since.items()}
        if self.open:
            await self._read_open()

    async def restart(self) -> None:
        """The companion has begun anew, and so does all that is made from it."""
        await self.index.clear()
        self.open.clear()
        self.applied = self.companion.start_offset

    async def take_in(self, end_offset: int) -> bool:
        """Takes in some of what lies below `end_offset`; False if there was nothing."""
        end_offset = min(end_offset, self.companion.end_offset)
        if self.applied >= end_offset:
            return False
        start = max(self.applied, self.companion.start_offset)
        found = await self.companion.read(start, _READ_BYTES, end_offset)
        for batch, header, position in batches_in(found):
            await self._take(batch, header, position)
            self.applied = header.next_offset
            self._read_bytes += header.size
            if self.index.fresh >= 2 * self.saving.entries:
                await self.save()
        if not found.size:
            self.applied = end_offset
        return True

    async def save_if_due(self, now_ms: float) -> bool:
        """Writes the index to disk, if reading it anew would take long; then lets go what nobody waits for."""
        if self._saved_ms is None:
            self._saved_ms = now_ms
        is_large = self.index.fresh >= self.saving.entries or self._read_bytes >= self.saving.bytes
        is_old = now_ms - self._saved_ms >= self.saving.every_ms
        if not self._read_bytes or not (is_large or is_old):
            return False
        await self.save()
        if is_old:
            self._saved_ms = now_ms
            await self._trim()
        return True

    async def save(self) -> None:
        """What the index has must not outlive a power loss longer than the logs that it is made from."""
        self._read_bytes = 0
        await self._main.flush()
        try:
            await self.index.save(self.applied, {producer: start for producer, (start, _) in self.open.items()})
        except OSError as error:
            logger.error(
                "index of timers not saved", extra=fields(log=str(self.companion.topic_partition), error=str(error))
            )

    async def _trim(self) -> None:
        starts = [self.applied, *(start for start, _ in self.open.values())]
        lowest = self.index.lowest_base
        start = min(starts) if lowest is None else min(lowest, *starts)
        if self.companion.start_offset < start <= self.companion.end_offset:
            await self.companion.trim(start)

    async def contents(self, entries: list[bytes]) -> list[bytes | None]:
        """What is to be delivered; None for what is damaged."""
        wanted = [unpack(entry) for entry in entries]
        pieces = [Piece(entry.base_offset, entry.position, entry.size) for entry in wanted]
        found = await self.companion.pieces(pieces)
        return [
            content if crc32c(content) == entry.crc and len(content) == entry.size else None
            for entry, content in zip(wanted, found, strict=True)
        ]

    async def _take(self, batch: memoryview, header: BatchHeader, position: int) -> None:
        if header.attributes & NOTE_BIT:
            await self._delivered(batch, header)
        elif header.is_control:
            marker = read_marker(batch, header)
            _, held = self.open.pop(header.producer_id, (0, []))
            if marker is not None and marker.committed:
                for change in held:
                    await self._change(change, header.base_timestamp)
        elif header.attributes & MOVED_BIT:
            await self._moved(batch, header, position)
        elif header.is_transactional:
            _, held = self.open.setdefault(header.producer_id, (header.base_offset, []))
            held += changes(batch, header, position)
        else:
            for change in changes(batch, header, position):
                if isinstance(change, Waits) and change.name is None:
                    self.index.add(change.entry)
                else:
                    await self._change(change, 0)

    async def _read_open(self) -> None:
        """Reads again what the transactions have sent that were open when the index was saved."""
        offset = max(self.companion.start_offset, min(start for start, _ in self.open.values()))
        while offset < self.applied:
            found = await self.companion.read(offset, _READ_BYTES, self.applied)
            if not found.size:
                return
            for batch, header, position in batches_in(found):
                start, held = self.open.get(header.producer_id, (header.next_offset, []))
                if header.is_transactional and not header.is_control and header.base_offset >= start:
                    held += changes(batch, header, position)
                offset = header.next_offset

    async def _change(self, change: Change, not_before_ms: int) -> None:
        if isinstance(change, Cancels):
            await self._cancel(change.name)
            return
        entry, name = change
        if due_of(entry) < not_before_ms:
            entry = delayed_to(entry, not_before_ms)
        if name is None:
            self.index.add(entry)
        else:
            await self._cancel(name)
            self.index.add(entry, hash_of(name))

    async def _cancel(self, name: bytes) -> None:
        """Cancels what waits under a name."""
        candidates = await self.index.named(hash_of(name))
        for entry, content in zip(candidates, await self.contents(candidates), strict=True):
            if content is not None and name_in(content) == name:
                self.index.cancel(entry)

    async def _moved(self, batch: memoryview, header: BatchHeader, position: int) -> None:
        """Messages go on waiting at another place, unless they no longer wait."""
        found = list(changes(batch, header, position))[1:]
        for entry, change in zip(read_moved(batch, header), found, strict=True):
            if isinstance(change, Waits) and await self.index.is_waiting(entry):
                self.index.cancel(entry)
                name = change.name
                self.index.add(delayed_to(change.entry, due_of(entry)), None if name is None else hash_of(name))
        self.index.has_moved = True

    async def _delivered(self, batch: memoryview, header: BatchHeader) -> None:
        mark, now_ms = read_delivered(batch, header)
        recurring: list[bytes] = []
        while not await self.index.reach(due_of(mark) + 1):
            # More than the wheel should have: what lies before the mark is passed step by step.
            recurring += self.index.passed(at_due(self.index.horizon_ms))
        recurring += self.index.passed(mark)
        for entry, content in zip(recurring, await self.contents(recurring), strict=True):
            if content is None:
                continue
            try:
                recurrence = recurrence_in(content)
                if recurrence is not None:
                    name = name_in(content)
                    again = delayed_to(entry, recurrence.next_after(due_of(entry), now_ms))
                    self.index.add(again, None if name is None else hash_of(name))
            except RecurrenceError as error:
                logger.warning(
                    "a schedule has come to its end",
                    extra=fields(log=str(self.companion.topic_partition), reason=str(error)),
                )


def batches_in(found: Slice) -> Iterator[tuple[memoryview, BatchHeader, int]]:
    """The batches of what was read, and where each lies in its file."""
    for part in found.parts:
        content = memoryview(content_of(part))
        position, file_position = 0, found.position if isinstance(part, bytes) else part.position
        while len(content) - position >= HEADER_BYTES:
            header = read_header(content, position)
            yield content[position : position + header.size], header, file_position + position
            position += header.size
