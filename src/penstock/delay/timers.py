"""What waits in one partition: made from its companion alone, up to the high watermark, the same on every replica.

The companion is read in order; every batch changes the index (`take_in`). A transaction's changes wait for its end.
After a crash the index is as it was saved, and the companion is read on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.delay.contents import Change, Waits, changes, hash_of, name_in
from penstock.delay.control_batches import MOVED_BIT, NOTE_BIT, RESET_BIT, read_delivered, read_moved, read_reset
from penstock.delay.due_index import DueIndex, InRuns, Moved
from penstock.delay.entries import PLACE_BYTES, at_due, delayed_to, due_of, is_named, unpack
from penstock.delay.index_files import SAVE_AFTER
from penstock.errors import ApiError, Code
from penstock.logs import fields
from penstock.records.batch import BatchHeader
from penstock.records.control import read_marker
from penstock.storage.contract import DamagedRange, Log, Piece, Slice

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
        self.damaged = 0
        """Parts of the companion that could not be read."""
        self._read_bytes = 0
        """How much would have to be read again after a crash."""
        self._saved_ms: float | None = None
        self._merged_at = -1
        """Where it was seen that nothing waits any more, and runs had to be merged to forget the last ones."""

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
        found = await self._read(start, end_offset)
        if isinstance(found, DamagedRange):
            self.applied = found.resumes_at
            self.damaged += 1
            logger.critical(
                "delayed messages are lost: the companion log is damaged; messages that were delivered or cancelled"
                " there may be delivered again",
                extra=fields(
                    log=str(self.companion.topic_partition),
                    from_offset=found.first_offset,
                    to_offset=found.resumes_at - 1,
                    bytes=found.size,
                ),
            )
            return True
        for batch, header, position in found.batches():
            await self._take(batch, header, position)
            self.applied = header.next_offset
            self._read_bytes += header.size
            if self.index.fresh >= 2 * self.saving.entries:
                await self.save()
        if not found.size:
            self.applied = end_offset
        return True

    async def save_if_due(self, now_ms: float) -> bool:
        """Writes the index to disk, if building it again would take long; then trims the companion. Returns whether
        there may be runs to merge.
        """
        if self._saved_ms is None:
            self._saved_ms = now_ms
        is_large = self.index.fresh >= self.saving.entries or self._read_bytes >= self.saving.bytes
        # A retired partition can go when nothing is left here, and its removal waits for that.
        is_over = self._main.successor is not None and self._is_done
        is_old = is_over or now_ms - self._saved_ms >= self.saving.every_ms
        is_due = bool(self._read_bytes) and (is_large or is_old)
        if is_due:
            await self.save()
        if is_old:
            self._saved_ms = now_ms
            await self._trim()
        if is_over and self._merged_at != self.applied and self.index.lowest_base is not None:
            # What was cancelled is on disk still, and goes when its runs are merged.
            self._merged_at, self.index.has_moved = self.applied, True
            return True
        return is_due

    @property
    def _is_done(self) -> bool:
        """Whether nothing waits, and nothing is to come that is not taken in."""
        return not self.index.pending and not self.open and self.applied == self.companion.end_offset

    async def save(self) -> None:
        """What the index has must not outlive a power loss longer than the logs that it is made from."""
        self._read_bytes = 0
        await self._main.flush()
        try:
            await self.index.save(self.applied, {producer: start for producer, (start, _) in self.open.items()})
        except OSError as error:
            logger.error(
                "could not save the timer index",
                extra=fields(log=str(self.companion.topic_partition), error=str(error)),
            )

    async def _trim(self) -> None:
        """Trims the companion's delivered and cancelled records, as far as the index on disk does not need them."""
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
        elif header.attributes & RESET_BIT:
            await self._reset(batch, header)
        elif header.is_control:
            marker = read_marker(batch, header)
            _, held = self.open.pop(header.producer_id, (0, []))
            if marker is not None and marker.committed:
                await self._change(held, header.base_timestamp)
        elif header.attributes & MOVED_BIT:
            await self._moved(batch, header, position)
        elif header.is_transactional:
            _, held = self.open.setdefault(header.producer_id, (header.base_offset, []))
            held += changes(batch, header, position)
        else:
            await self._change(list(changes(batch, header, position)), 0)

    async def _read_open(self) -> None:
        """Reads again what the transactions have sent that were open when the index was saved."""
        offset = max(self.companion.start_offset, min(start for start, _ in self.open.values()))
        while offset < self.applied:
            found = await self._read(offset, self.applied)
            if isinstance(found, DamagedRange):
                offset = found.resumes_at  # said when it was taken in
                continue
            if not found.size:
                return
            for batch, header, position in found.batches():
                start, held = self.open.get(header.producer_id, (header.next_offset, []))
                if header.is_transactional and not header.is_control and header.base_offset >= start:
                    held += changes(batch, header, position)
                offset = header.next_offset

    async def _read(self, offset: int, end_offset: int) -> Slice | DamagedRange:
        """Batches of the companion, or what is damaged there."""
        try:
            return await self.companion.read(offset, _READ_BYTES, end_offset)
        except ApiError as error:
            if error.code is not Code.CORRUPT_MESSAGE:
                raise
            return self.companion.damage_at(offset) or DamagedRange(offset, offset + 1, 0)

    async def _change(self, found: Sequence[Change], not_before_ms: int) -> None:
        """Changes the index; nothing is due before a time."""
        # One look-up for all: each would cost a thread, and several reads, of its own.
        in_runs = await self.index.in_runs(hash_of(change.name) for change in found if change.name is not None)
        for change in found:
            if change.name is not None:
                await self._cancel(change.name, in_runs)
            if isinstance(change, Waits):
                entry, name = change
                if due_of(entry) < not_before_ms:
                    entry = delayed_to(entry, not_before_ms)
                self.index.add(entry, None if name is None else hash_of(name))

    async def _cancel(self, name: bytes, in_runs: InRuns) -> None:
        """Cancels what waits under a name."""
        id_hash = hash_of(name)
        candidates = self.index.named(id_hash, in_runs)
        if candidates:
            for entry, content in zip(candidates, await self.contents(candidates), strict=True):
                if content is not None and name_in(content) == name:
                    self.index.cancel(entry, id_hash)

    async def _moved(self, batch: memoryview, header: BatchHeader, position: int) -> None:
        """Messages go on waiting at another place, unless they no longer wait."""
        found = list(changes(batch, header, position))[1:]
        for entry, change in zip(read_moved(batch, header), found, strict=True):
            if isinstance(change, Waits) and await self.index.is_waiting(entry):
                id_hash = None if change.name is None else hash_of(change.name)
                self.index.cancel(entry, id_hash)
                self.index.add(delayed_to(change.entry, due_of(entry)), id_hash)
        self.index.has_moved = True

    async def _delivered(self, batch: memoryview, header: BatchHeader) -> None:
        done = read_delivered(batch, header)
        recurring: list[bytes] = []
        while not await self.index.reach(due_of(done.mark) + 1):
            # More than the wheel should have: what lies before the mark is passed step by step.
            recurring += self.index.passed(at_due(self.index.horizon_ms))
        recurring += self.index.passed(done.mark)
        again = [entry for entry in recurring if entry[:PLACE_BYTES] in done.again]
        hashes = await self._hashes(again)
        for entry in again:
            self.index.add(delayed_to(entry, done.again[entry[:PLACE_BYTES]]), hashes.get(entry))

    async def _reset(self, batch: memoryview, header: BatchHeader) -> None:
        reset = read_reset(batch, header)
        hashes = await self._hashes(list(reset.moved))
        moved = [Moved(entry, delayed_to(entry, due), hashes.get(entry)) for entry, due in reset.moved.items()]
        await self._main.flush()
        open_since = {producer: start for producer, (start, _) in self.open.items()}
        await self.index.reset_mark(at_due(reset.now_ms), moved, header.next_offset, open_since)
        self._read_bytes = 0

    async def _hashes(self, entries: Sequence[bytes]) -> dict[bytes, bytes]:
        """The hashes of the timer ids of those that have one."""
        named = [entry for entry in entries if is_named(entry)]
        names = [None if content is None else name_in(content) for content in await self.contents(named)]
        return {entry: hash_of(name) for entry, name in zip(named, names, strict=True) if name is not None}
