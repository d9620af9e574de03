"""The index of the messages that wait in one companion log: by due time, and by timer id.

New entries are in memory until they are written as a sorted run. Of the entries in runs only those of the next minute
are in memory, in the wheel. The state on disk is that of one offset of the companion; after a crash the companion is
read on from there. `docs/internals/delay.md` has the files.

Loading, saving and merging take turns (`_turn`). Adding, cancelling and taking need no turn: they happen between two
steps of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.delay.entries import (
    ENTRY_BYTES,
    NOTHING_DELIVERED,
    PLACE_BYTES,
    at_due,
    base_of,
    cancelled,
    due_of,
    live,
    recurs,
)
from penstock.delay.index_files import (
    DUE,
    IDS,
    MINUTE_MS,
    NOTHING_SAVED,
    IndexFolder,
    Saved,
    behind,
    below,
    between,
    choose,
    find,
    forget,
    load,
    merge_runs,
    path_of,
    recurring,
    reset_runs,
    save_runs,
    save_state,
    split,
    up_to_minute,
    with_ids,
    without_passed,
)
from penstock.delay.sorted_runs import Layout, Run
from penstock.delay.wheel import Wheel
from penstock.errors import StorageError
from penstock.logs import fields

logger = logging.getLogger(__name__)

WHEEL_MAX = 500_000
"""With so many in the wheel the next minute is not loaded yet: after a long stop all that is overdue would come."""

_NEVER = 1 << 62

T = TypeVar("T")


InRuns = Mapping[bytes, Sequence[bytes]]
"""Entries by the hash of their timer id."""


class Contents(NamedTuple):
    """What an index has at one moment."""

    runs: tuple[Run, ...]
    fresh: bytes
    """Entries that are in no run, in no order."""
    mark: bytes


class Moved(NamedTuple):
    """A message that waits is due at another time."""

    old: bytes
    new: bytes
    id_hash: bytes | None


class DueIndex:
    """What waits, and up to where it was delivered."""

    def __init__(self, place: IndexFolder | None) -> None:
        self._place = place
        self.wheel = Wheel()
        self.mark = NOTHING_DELIVERED
        """Everything at or below it was delivered, and that is settled; the wheel may be ahead."""
        self.horizon_ms = 0
        """What is due before is in the wheel."""
        self.read_from = -1
        """From where the companion is to be read again after a start; -1 if the index is not on disk."""
        self._far = bytearray()
        """New entries behind the horizon, in no order: an object for each minute would take more than the entries."""
        self._far_from_ms = _NEVER
        """None of them is due before."""
        self._near = bytearray()
        """New entries that are in the wheel too."""
        self._ids: dict[bytes, bytearray] = {}
        self._fresh = 0
        self._runs: dict[Layout, list[Run]] = {DUE: [], IDS: []}
        self._saved = NOTHING_SAVED
        """The state on disk: what the companion says behind its mark is read again after a crash."""
        self.has_moved = False
        """Messages have other places than before: runs are merged to forget the old ones."""
        self.pending = 0
        """How many messages wait, as far as that is settled."""
        self.open_since: dict[int, int] = {}
        """Transactions that were open when the index was last saved, and where they begin."""
        self._number = 0
        self._turn = asyncio.Lock()

    @property
    def fresh(self) -> int:
        """How many entries are in memory only."""
        return self._fresh

    @property
    def lowest_base(self) -> int | None:
        """No message that waits lies below this offset of the companion; None if nothing waits."""
        bases = [run.lowest_base for run in self._runs[DUE]]
        for packed in (self._near, self._far):
            bases += (base_of(entry) for entry in split(packed) if entry > self.mark)
        return min(bases, default=None)

    async def open(self) -> None:
        """Brings back what is on disk; if that is not sound, nothing, and all of the companion has to be read."""
        if self._place is None:
            return
        try:
            found = await self._in_thread(load, self._place)
        except StorageError as error:
            logger.error("rebuilding the timer index", extra=fields(folder=str(self._place.folder), reason=str(error)))
            found = NOTHING_SAVED
        self._runs = {layout: list(found.runs.get(layout, [])) for layout in (DUE, IDS)}
        self.mark, self._saved = found.mark, found
        self.read_from, self._number, self.open_since = found.read_from, found.number, found.open_since
        self.pending = found.pending
        self._begin_wheel()

    async def clear(self) -> None:
        """Forgets everything, on disk too: the companion has begun anew."""
        async with self._turn:
            self._begin_fresh()
            self._runs, self.mark, self._saved = {DUE: [], IDS: []}, NOTHING_DELIVERED, NOTHING_SAVED
            self.read_from, self.open_since, self.pending = -1, {}, 0
            self._begin_wheel()
            if self._place is not None:
                await self._in_thread(forget, self._place)

    def add(self, entry: bytes, id_hash: bytes | None = None) -> None:
        """A message waits from now on; one that was delivered already is left out."""
        if entry <= self.mark:
            return
        self._add(entry)
        self.pending += 1
        if id_hash is not None:
            self._ids.setdefault(id_hash, bytearray()).extend(entry)

    def cancel(self, entry: bytes, id_hash: bytes | None = None) -> None:
        """A message that waits no longer does; it may have been taken, but not delivered."""
        if entry <= self.mark:
            return
        if entry <= self.wheel.mark:
            self.wheel.cancel_taken(entry)
        self._add(cancelled(entry))
        self.pending -= 1
        if id_hash is not None:
            fresh = self._ids.setdefault(id_hash, bytearray())
            at = find(fresh, entry)
            if at < 0:
                fresh += cancelled(entry)
            else:
                # One name may be given to message after message: here it has the last one only.
                del fresh[at : at + ENTRY_BYTES]

    def _add(self, entry: bytes) -> None:
        if due_of(entry) < self.horizon_ms:
            self.wheel.add(entry)
        self._keep(entry)
        self._fresh += 1

    async def in_runs(self, hashes: Iterable[bytes]) -> InRuns:
        """What the runs have of these ids; it stays right until the next save."""
        wanted = sorted(set(hashes))
        if not wanted or not self._runs[IDS]:
            return {}
        async with self._turn:
            return await self._in_thread(with_ids, list(self._runs[IDS]), wanted)

    def named(self, id_hash: bytes, in_runs: InRuns) -> list[bytes]:
        """Entries that may have this timer id and wait."""
        return live([*split(self._ids.get(id_hash, b"")), *in_runs.get(id_hash, ())], self.mark)

    async def is_waiting(self, entry: bytes) -> bool:
        """Whether a message that was added is neither delivered nor cancelled."""
        if entry <= self.mark:
            return False
        gone = cancelled(entry)
        if any(find(packed, gone) >= 0 for packed in (self._near, self._far)):
            return False
        async with self._turn:
            for run in self._runs[DUE]:
                if await self._in_thread(between, run, gone, behind(gone)):
                    return False
        return True

    async def below(self, base_offset: int, most: int) -> list[bytes] | None:
        """The messages that wait below an offset of the companion, in order; None if there are too many."""
        async with self._turn:
            mark = self.mark
            fresh = split(self._near + self._far)
            runs = [run for run in self._runs[DUE] if run.lowest_base < base_offset]
            found = [entry for entry in fresh if base_of(entry) < base_offset]
            if runs:
                found += await self._in_thread(below, runs, base_offset)
        waiting = live(found, mark)
        return waiting if len(waiting) <= most else None

    async def contents(self) -> Contents:
        """What is in the index now; it can be read at leisure, in a thread."""
        async with self._turn:
            return Contents(tuple(self._runs[DUE]), bytes(self._near + self._far), self.mark)

    async def reach(self, due_ms: int) -> bool:
        """Loads what is due before, minute by minute; False if there was too much of it for now."""
        while self.horizon_ms < due_ms:
            if len(self.wheel) >= WHEEL_MAX:
                return False
            await self._load_minutes(due_ms)
        return True

    def passed(self, mark: bytes) -> list[bytes]:
        """Everything up to `mark` was delivered, which the wheel has reached; gives those that recur."""
        messages, recurring = self.wheel.passed(mark)
        self.mark = max(self.mark, mark)
        self.pending -= messages
        return recurring

    def rewind(self) -> None:
        """What was taken from the wheel, and is not settled, was not delivered."""
        near, self._near = self._near, bytearray()
        self._begin_wheel()
        for entry in split(near):
            if entry > self.mark:
                self._keep(entry)

    async def recurring(self) -> list[bytes]:
        """The messages that recur and wait, in order."""
        async with self._turn:
            mark, runs = self.mark, self._runs[DUE]
            found = split(self._near + self._far)
            if runs:
                found += await self._in_thread(recurring, list(runs))
        return [entry for entry in live(found, mark) if recurs(entry)]

    async def reset_mark(self, mark: bytes, moved: Sequence[Moved], read_from: int, open_since: dict[int, int]) -> None:
        """Sets the mark back. What lies at or below the old one was delivered: it leaves the index, on disk too, for
        the new mark does not say so. The companion is read from `read_from` on after a crash.
        """
        async with self._turn:
            old, places = self.mark, frozenset(move.old[:PLACE_BYTES] for move in moved)

            def stays(entry: bytes) -> bool:
                return entry > old and entry[:PLACE_BYTES] not in places

            entries = [entry for entry in split(self._near + self._far) if stays(entry)]
            named = {key: [entry for entry in split(packed) if stays(entry)] for key, packed in self._ids.items()}
            for move in moved:
                entries.append(move.new)
                if move.id_hash is not None:
                    named.setdefault(move.id_hash, []).append(move.new)
            if self._place is None:
                self._begin_fresh()
                self.mark = mark
                self._begin_wheel()
                self._put_back(entries, {key: bytearray(b"".join(found)) for key, found in named.items() if found})
                return
            number, self._number = self._number, self._number + 4
            fresh = {DUE: entries, IDS: [key + entry for key, found in named.items() for entry in found]}
            kept = await self._in_thread(save_runs, self._place, number, fresh)
            gone: list[Path] = []
            for layout in (DUE, IDS):
                number_of = number + (2 if layout is DUE else 3)
                left, stale = await self._in_thread(
                    reset_runs, self._place, number_of, layout, list(self._runs[layout]), old, places
                )
                kept[layout], gone = left + kept[layout], gone + stale
            state = Saved(kept, mark, read_from, 0, dict(open_since), self.pending)
            await self._in_thread(save_state, self._place, state, gone)
            self._runs, self._saved, self.mark = kept, state, mark
            self.read_from, self.open_since = read_from, state.open_since
            self._begin_fresh()
            self._begin_wheel()

    async def save(self, read_from: int, open_since: dict[int, int]) -> None:
        """Writes what is in memory as a run; the companion is read from `read_from` on after a crash, and before it
        only for these transactions, which are open.
        """
        if self._place is None:
            self._forget_settled()
            return
        async with self._turn:
            mark, number, pending = self.mark, self._number, self.pending
            ids = self._ids
            entries = [entry for entry in split(self._near + self._far) if entry > mark]
            named = [key + entry for key, packed in ids.items() for entry in split(packed) if entry > mark]
            self._begin_fresh()
            self._number = number + 2
            try:
                runs = await self._in_thread(save_runs, self._place, number, {DUE: entries, IDS: named})
                kept = {layout: [*self._runs[layout], *runs[layout]] for layout in (DUE, IDS)}
                kept, gone = without_passed(kept, mark)
                state = Saved(kept, mark, read_from, 0, dict(open_since), pending)
                await self._in_thread(save_state, self._place, state, gone)
            except OSError:
                self._put_back(entries, ids)
                raise
            self._runs, self._saved = kept, state
            self.read_from, self.open_since = read_from, state.open_since

    async def merge(self) -> bool:
        """Merges runs of one size, if there are enough; False if there were not. One caller at a time."""
        if self._place is None:
            return False
        due = [(layout, chosen) for layout, runs in self._runs.items() if (chosen := choose(runs))]
        if self.has_moved and self._runs[DUE]:
            due = [(DUE, list(self._runs[DUE]))]
            self.has_moved = False
        if not due:
            return False
        layout, chosen = due[0]
        path = path_of(self._place, layout, self._number)
        self._number += 1
        is_whole = len(chosen) == len(self._runs[layout])
        new = await self._in_thread(merge_runs, self._place.files, path, layout, chosen, self._saved.mark, is_whole)
        async with self._turn:
            if any(run not in self._runs[layout] for run in chosen):
                # Meanwhile the mark was reset, or everything forgotten: what was merged is not what waits.
                await self._in_thread(self._place.files.remove, path)
                return True
            kept = dict(self._runs)
            kept[layout] = [run for run in self._runs[layout] if run not in chosen]
            if new.count:
                kept[layout].append(new)
            gone = [run.path for run in chosen]
            state = self._saved._replace(runs=kept)
            await self._in_thread(save_state, self._place, state, gone)
            self._runs, self._saved = kept, state
        return True

    async def _load_minutes(self, due_ms: int) -> None:
        async with self._turn:
            start = max(self.horizon_ms, due_of(self.mark) // MINUTE_MS * MINUTE_MS)
            low = max(at_due(start), self.mark)
            end = self._end_of_step(low, start, up_to_minute(max(due_ms, start)))
            for run in self._runs[DUE]:
                # Most partitions have nothing to do: they must not cost a thread.
                if run.count_between(low, at_due(end)):
                    for piece in await self._in_thread(between, run, low, at_due(end)):
                        self.wheel.add_sorted(piece)
            self.horizon_ms = end
            if self._far_from_ms < end:
                far, self._far, self._far_from_ms = self._far, bytearray(), _NEVER
                for entry in split(far):
                    self._keep(entry)
                    if due_of(entry) < end:
                        self.wheel.add(entry)

    def _end_of_step(self, low: bytes, start_ms: int, end_ms: int) -> int:
        """Not so far that more is loaded than the wheel should have, but at least a minute."""
        while end_ms - start_ms > MINUTE_MS:
            if sum(run.count_between(low, at_due(end_ms)) for run in self._runs[DUE]) <= WHEEL_MAX:
                break
            end_ms = up_to_minute((start_ms + end_ms) // 2)
        return end_ms

    def _begin_fresh(self) -> None:
        self._near, self._far, self._far_from_ms, self._ids, self._fresh = bytearray(), bytearray(), _NEVER, {}, 0

    def _begin_wheel(self) -> None:
        self.wheel = Wheel(self.mark)
        self.horizon_ms = 0

    def _forget_settled(self) -> None:
        """Without a disk everything stays in memory until it is delivered or cancelled."""
        entries, ids = split(self._near + self._far), self._ids
        self._begin_fresh()
        for entry in live(entries, self.mark):
            self._keep(entry)
        kept = {key: b"".join(live(split(packed), self.mark)) for key, packed in ids.items()}
        self._ids = {key: bytearray(packed) for key, packed in kept.items() if packed}

    def _put_back(self, entries: list[bytes], ids: dict[bytes, bytearray]) -> None:
        for entry in entries:
            self._keep(entry)
        self._fresh += len(entries)
        for key, packed in ids.items():
            self._ids.setdefault(key, bytearray()).extend(packed)

    def _keep(self, entry: bytes) -> None:
        """Keeps an entry until it is written as a run."""
        due_ms = due_of(entry)
        if due_ms < self.horizon_ms:
            self._near += entry
        else:
            self._far += entry
            self._far_from_ms = min(self._far_from_ms, due_ms)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        assert self._place is not None
        return await asyncio.get_running_loop().run_in_executor(self._place.pool, call, *args)
