"""Reads what a consumer of old records will ask for next, while it is busy with what it has.

A consumer asks for a range, gets it, and asks for the one behind. Left alone, the database, this broker and the
consumer would take turns. So a range that is read in sequence has the next `_DEPTH` read behind it: each begins as soon
as the size of the one before is known, while its rows are still on their way.

What was read ahead is dropped if it is not asked for within `_FRESH_MS`, or when the log changes in another way than by
growing. All logs together hold at most `_HELD_READS`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.storage.sql.partition_table import FoundBatches, OnSize

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

_DEPTH = 2
_HELD_READS = 32
_LARGEST_READ = 1 << 20
_FRESH_MS = 1_000
_READERS = 8
"""So many readers of one log are known to read in sequence."""

ReadRange = Callable[[int, int, int, OnSize], Coroutine[Any, Any, FoundBatches]]
"""Reads from an offset about so many bytes, below an end."""


class _Range:
    """One that is being read, or was read and waits for its reader."""

    def __init__(self, offset: int, max_bytes: int, end_offset: int, before: _Range | None) -> None:
        self.offset = offset
        self.max_bytes = max_bytes
        self.end_offset = end_offset
        self.before = before
        """The range before it, until its reader has come here."""
        self.next_offset: int | None = None
        """Where it ends, once that is known."""
        self.behind: _Range | None = None
        self.is_taken = False
        self.found: asyncio.Task[FoundBatches] | None = None

    @property
    def has_room_behind(self) -> bool:
        """Whether fewer than `_DEPTH` ranges behind the reader are begun, this one among them."""
        at: _Range | None = self
        for _ in range(_DEPTH):
            if at is None or at.is_taken:
                return True
            at = at.before
        return False


class HeldReads:
    """What was read ahead for all logs of a database group; the oldest makes room."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: OrderedDict[tuple[SqlLog, int], tuple[_Range, float]] = OrderedDict()

        self._timer: asyncio.TimerHandle | None = None

    def hold(self, log: SqlLog, found: _Range) -> None:
        self._held[log, found.offset] = found, self._clock.monotonic_ms()
        while len(self._held) > _HELD_READS:
            self._held.popitem(last=False)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FRESH_MS / 1000, self._drop_old)

    def holds(self, log: SqlLog, offset: int) -> bool:
        return (log, offset) in self._held

    def take(self, log: SqlLog, offset: int) -> _Range | None:
        found = self._held.pop((log, offset), None)
        return None if found is None or self._is_old(found[1]) else found[0]

    def _is_old(self, begun_ms: float) -> bool:
        return begun_ms < self._clock.monotonic_ms() - _FRESH_MS

    def _drop_old(self) -> None:
        self._timer = None
        while self._held and self._is_old(next(iter(self._held.values()))[1]):
            self._held.popitem(last=False)
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(_FRESH_MS / 1000, self._drop_old)

    def forget(self, log: SqlLog) -> None:
        for key in [key for key in self._held if key[0] is log]:
            del self._held[key]


class ReadAhead:
    """The ranges of one log."""

    def __init__(self, log: SqlLog, read: ReadRange) -> None:
        self._log = log
        self._read = read
        self._reached: deque[int] = deque(maxlen=_READERS)
        """Where readers will go on who read the table last."""

    @property
    def _held(self) -> HeldReads:
        return self._log.env.held_reads

    def forget(self) -> None:
        """The log has changed in another way than by growing."""
        self._held.forget(self._log)
        self._reached.clear()

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> FoundBatches:
        found = await self._taken(offset, max_bytes, end_offset)
        if found is None:
            here = _Range(offset, min(max_bytes, _LARGEST_READ), end_offset, None)
            here.is_taken = True
            is_in_sequence = offset in self._reached
            found = await self._read(offset, max_bytes, end_offset, self._told(here) if is_in_sequence else _ignore)
        with suppress(ValueError):
            self._reached.remove(offset)
        self._reached.append(found.next_offset)
        return found

    async def _taken(self, offset: int, max_bytes: int, end_offset: int) -> FoundBatches | None:
        """What was read ahead; None if that is not what is asked for."""
        taken = self._held.take(self._log, offset)
        if taken is None or taken.max_bytes > max_bytes or taken.end_offset > end_offset:
            return None
        self._take(taken)
        assert taken.found is not None
        try:
            return await asyncio.shield(taken.found)
        except PenstockError:
            return None

    def _take(self, taken: _Range) -> None:
        taken.is_taken, taken.before = True, None
        at: _Range | None = taken
        while at is not None:
            self._go_on(at)
            at = at.behind

    def _told(self, of: _Range) -> OnSize:
        loop = asyncio.get_running_loop()

        def tell(next_offset: int) -> None:
            of.next_offset = next_offset
            loop.call_soon_threadsafe(self._go_on, of)

        return tell

    def _go_on(self, at: _Range) -> None:
        """Begins to read what lies behind a range, if that is to be read now."""
        log, offset = self._log, at.next_offset
        if offset is None or at.behind is not None or not at.has_room_behind:
            return
        if offset >= at.end_offset or self._held.holds(log, offset) or log.is_closed or log.env.reads.locked():
            return
        behind = at.behind = _Range(offset, at.max_bytes, at.end_offset, at)
        behind.found = log.start(self._read(offset, at.max_bytes, at.end_offset, self._told(behind)), "read ahead in")
        behind.found.add_done_callback(_notice)
        self._held.hold(log, behind)


def _ignore(next_offset: int) -> None:
    """Nothing is read ahead."""


def _notice(task: asyncio.Task[FoundBatches]) -> None:
    """A failure is met again by the reader, if it comes here."""
    if not task.cancelled():
        task.exception()
