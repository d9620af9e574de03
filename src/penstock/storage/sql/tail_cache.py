"""The last batches of a log as they were sent, for readers at its end, which then need no database."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from penstock.records.batch import BatchHeader
from penstock.storage.contract import Slice
from penstock.storage.producers import ProducerEntry


class WrittenBatch(NamedTuple):
    """A batch in the log."""

    header: BatchHeader
    batch: bytes
    append_ms: int
    producer_before: ProducerEntry | None = None
    """What was known of its producer before it; a cut goes back to that."""
    is_told: bool = False
    """Whether its producer's entry was changed by it."""


class CacheRoom:
    """What the caches of all logs may hold together. The log that was appended to longest ago makes room first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0
        self._caches: dict[TailCache, None] = {}
        """Those that hold something, the one that was appended to last at the end."""

    def grew(self, cache: TailCache, size: int) -> None:
        """A cache took in another batch; others, or itself, let some go for it."""
        self.bytes += size
        self._caches.pop(cache, None)
        self._caches[cache] = None
        while self.bytes > self._max_bytes and self._caches:
            next(iter(self._caches)).make_room()

    def shrank(self, cache: TailCache, size: int, *, is_empty: bool) -> None:
        self.bytes -= size
        if is_empty:
            self._caches.pop(cache, None)


class TailCache:
    """A row of batches that ends where the log ends: what has committed."""

    def __init__(self, room: CacheRoom, end_offset: int = 0) -> None:
        self._room = room
        self._size = 0
        self._held: list[WrittenBatch] = []
        self.start_offset = end_offset
        """All of the log from here on is held."""

    @property
    def end_offset(self) -> int:
        return self._held[-1].header.next_offset if self._held else self.start_offset

    def add(self, written: WrittenBatch) -> None:
        """Takes in the next batch of the log; the oldest make room for it."""
        if not self._held and written.header.base_offset < self.start_offset:
            self.start_offset = written.header.base_offset
        self._held.append(written)
        self._size += len(written.batch)
        self._room.grew(self, len(written.batch))

    def make_room(self) -> None:
        """Lets the older part go, at least one batch."""
        gone, enough = 0, self._size * 3 // 4
        size = self._size
        while gone < len(self._held) and (not gone or size > enough):
            size -= len(self._held[gone].batch)
            gone += 1
        self.start_offset = self._held[gone - 1].header.next_offset
        del self._held[:gone]
        self._shrink_to(size)

    def begin_at(self, end_offset: int) -> None:
        """Forgets everything; the log ends at `end_offset`."""
        self._held.clear()
        self._shrink_to(0)
        self.start_offset = end_offset

    def _shrink_to(self, size: int) -> None:
        freed, self._size = self._size - size, size
        self._room.shrank(self, freed, is_empty=not self._held)

    def forget_below(self, offset: int) -> None:
        """Forgets batches that begin below an offset: they are not in the log any more as they were."""
        gone = bisect_left(self._held, offset, key=lambda written: written.header.base_offset)
        if gone:
            self.start_offset = self._held[gone - 1].header.next_offset
            size = self._size - sum(len(written.batch) for written in self._held[:gone])
            del self._held[:gone]
            self._shrink_to(size)

    def held_from(self, end_offset: int) -> list[WrittenBatch]:
        """The batches that reach to an offset, or lie behind it."""
        return self._held[bisect_left(self._held, end_offset, key=lambda written: written.header.last_offset) :]

    def cut(self, end_offset: int) -> None:
        """Forgets those; the log ends at `end_offset`, which is the end of a batch or lies below the start."""
        if end_offset < self.start_offset:
            self.begin_at(end_offset)
            return
        cut = self.held_from(end_offset)
        size = self._size - sum(len(written.batch) for written in cut)
        del self._held[len(self._held) - len(cut) :]
        self._shrink_to(size)

    def end_below(self, end_offset: int) -> int:
        """Where the last batch ends that lies below an offset; the start if none does."""
        kept = bisect_left(self._held, end_offset, key=lambda written: written.header.last_offset)
        return self._held[kept - 1].header.next_offset if kept else self.start_offset

    def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        """Whole batches from `offset` on, which is not below the start."""
        parts: list[bytes] = []
        size = 0
        first = bisect_left(self._held, offset, key=lambda written: written.header.last_offset)
        for at in range(first, len(self._held)):
            header, batch = self._held[at].header, self._held[at].batch
            if header.next_offset > end_offset or (parts and size + len(batch) > max_bytes):
                break
            parts.append(batch)
            size += len(batch)
        return Slice(tuple(parts), size, end_offset)
