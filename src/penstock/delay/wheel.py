"""The wheel: what is due soon, a slot a second, and the milliseconds of the current one in order.

Pure. It holds all entries of an index below its horizon and above what was taken from it. A slot is one packed array,
24 bytes an entry; only the entries of the second that has come are objects, sorted. Time is what the caller says it is.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import NamedTuple

from penstock.delay.entries import ENTRY_BYTES, NOTHING_DELIVERED, PLACE_BYTES, due_of, is_cancel, recurs, size_of

_SECOND_MS = 1000


class Passed(NamedTuple):
    """What was delivered up to a mark."""

    messages: int
    recurring: list[bytes]


class Wheel:
    """Entries in the order in which they are due."""

    def __init__(self, mark: bytes = NOTHING_DELIVERED) -> None:
        self.mark = mark
        """Everything at or below it was taken."""
        self._slots: dict[int, bytearray] = {}
        self._current: list[bytes] = []
        """What is left of the seconds that have come, in order, from `_at` on."""
        self._at = 0
        self._second = -1
        """The last of them."""
        self._cancelled = b""
        """The message that the last entry taken has cancelled."""
        self._recurring: list[bytes] = []
        """Those that recur and were taken, in order, until `passed` asks for them."""
        self._takes: deque[tuple[bytes, int]] = deque()
        """What was taken and is not passed: up to which entry, and how many messages."""
        self.cancelled_late: set[bytes] = set()
        """Messages that were taken and then cancelled, until they are passed."""

    def __len__(self) -> int:
        return len(self._current) - self._at + sum(map(len, self._slots.values())) // ENTRY_BYTES

    def add(self, entry: bytes) -> None:
        """One that was taken already, or whose time has passed with others, is left out."""
        if entry <= self.mark:
            return
        second = due_of(entry) // _SECOND_MS
        if second <= self._second:
            insort(self._current, entry, lo=self._at)
        else:
            self._slots.setdefault(second, bytearray()).extend(entry)

    def add_sorted(self, entries: memoryview) -> None:
        """Many that are in order; found by seconds, not one by one."""
        start, size = 0, len(entries)
        while start < size:
            second = int.from_bytes(entries[start : start + 6], "big") // _SECOND_MS
            end = _first_at(entries, start // ENTRY_BYTES, (second + 1) * _SECOND_MS) * ENTRY_BYTES
            if second <= self._second or bytes(entries[start : start + ENTRY_BYTES]) <= self.mark:
                for position in range(start, end, ENTRY_BYTES):
                    self.add(bytes(entries[position : position + ENTRY_BYTES]))
            else:
                self._slots.setdefault(second, bytearray()).extend(entries[start:end])
            start = end

    def next_due(self) -> int | None:
        """When the next one is due that may be taken."""
        self._turn()
        return due_of(self._current[self._at]) if self._at < len(self._current) else None

    def oldest_due(self) -> int | None:
        """When the oldest is due that is not passed, to the second for those that have not come yet."""
        if self._takes:
            return due_of(self._takes[0][0])
        if self._at < len(self._current):
            return due_of(self._current[self._at])
        return min(self._slots) * _SECOND_MS if self._slots else None

    def take(self, until_ms: int, count: int, max_bytes: int = 1 << 62) -> list[bytes]:
        """At most `count` messages that are due at `until_ms` or before, in order; the mark goes with them.

        They have at most `max_bytes`, unless there is one only.
        """
        taken: list[bytes] = []
        size = 0
        while len(taken) < count and size < max_bytes:
            self._turn()
            if self._at == len(self._current) or due_of(self._current[self._at]) > until_ms:
                break
            entry = self._current[self._at]
            self._at += 1
            if self._pass(entry):
                taken.append(entry)
                size += size_of(entry)
        if taken:
            self._takes.append((taken[-1], len(taken)))
        return taken

    def cancel_taken(self, entry: bytes) -> None:
        """A message that was taken, and is not delivered yet, is not delivered at all."""
        if entry[:PLACE_BYTES] in self.cancelled_late:
            return
        self.cancelled_late.add(entry[:PLACE_BYTES])
        for at, (last, count) in enumerate(self._takes):
            if entry <= last:
                self._takes[at] = (last, count - 1)
                break
        self._recurring = [other for other in self._recurring if other[:PLACE_BYTES] != entry[:PLACE_BYTES]]

    def passed(self, mark: bytes) -> Passed:
        """Everything up to `mark` was delivered: it is taken, and those of it that recur are given.

        It is where a take ended, or lies behind all of them.
        """
        count = 0
        while self._takes and self._takes[0][0] <= mark:
            count += self._takes.popleft()[1]
        if mark > self.mark:
            count += self._take_to(mark)
            self.mark = mark
        if self.cancelled_late:
            self.cancelled_late = {place for place in self.cancelled_late if place > mark[:PLACE_BYTES]}
        recurring = bisect_right(self._recurring, mark)
        found, self._recurring = self._recurring[:recurring], self._recurring[recurring:]
        return Passed(count, found)

    def _take_to(self, mark: bytes) -> int:
        """Takes all up to `mark`; gives how many messages that were."""
        count = 0
        while True:
            self._turn()
            if self._at == len(self._current) or self._current[self._at] > mark:
                return count
            end = bisect_right(self._current, mark, lo=self._at)
            count += sum(map(self._pass, self._current[self._at : end]))
            self._at = end

    def _pass(self, entry: bytes) -> bool:
        """Takes the next entry; False if it is no message, or one that is cancelled, or was there twice."""
        is_repeat = entry == self.mark
        self.mark = entry
        if is_cancel(entry):
            self._cancelled = entry[:PLACE_BYTES]
            return False
        if is_repeat or entry[:PLACE_BYTES] == self._cancelled:
            return False
        if recurs(entry):
            self._recurring.append(entry)
        return True

    def _turn(self) -> None:
        """Where the current second is used up, the next one that has entries becomes it."""
        while self._at == len(self._current) and self._slots:
            second = min(self._slots)
            slot = bytes(self._slots.pop(second))
            self._current = sorted(slot[at : at + ENTRY_BYTES] for at in range(0, len(slot), ENTRY_BYTES))
            self._at = bisect_right(self._current, self.mark)
            self._second = second


def _first_at(entries: memoryview, low: int, due_ms: int) -> int:
    """The index of the first entry, from `low` on, that is due at `due_ms` or later."""
    high = len(entries) // ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        if int.from_bytes(entries[middle * ENTRY_BYTES : middle * ENTRY_BYTES + 6], "big") < due_ms:
            low = middle + 1
        else:
            high = middle
    return low
