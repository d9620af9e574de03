"""What waits, in the order in which it is due, page by page, under numbers that rise with the due time.

    39 bits  second in which a message is due, since 1970
    24 bits  how many messages of this second come before it

As offsets these make what waits readable like a log (`docs/internals/delay.md`). Messages come and go meanwhile, so the
second part is known only by counting: a reader that continues behind what it got last is known by its spot, and the
count goes on from there. Everything here runs in threads and waits for the disk.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.delay.delay_headers import MAX_DUE_MS
from penstock.delay.due_index import Contents
from penstock.delay.entries import PLACE_BYTES, at_due, due_of, is_cancel, size_of
from penstock.delay.index_files import split
from penstock.delay.sorted_runs import merged

PAGE_MESSAGES = 1000
LOOK_AT_MOST = 50_000
"""Entries that are looked at for one page: where many were cancelled there may be nothing to show for long."""

_SECOND_MS = 1000
_COUNT_BITS = 24
_MAX_COUNT = (1 << _COUNT_BITS) - 1
"""Messages of one second and partition that come behind so many others are not shown."""


class Spot(NamedTuple):
    """How far a reader has read: an entry, and the number under which it goes."""

    entry: bytes
    number: int


class Numbered(NamedTuple):
    number: int
    entry: bytes


class ListingPage(NamedTuple):
    shown: list[Numbered]
    reached: Spot | None
    """The last message that was looked at, shown or not; None if there was none."""
    is_last: bool
    """There was nothing behind it."""


def first_number(due_ms: int) -> int:
    """Not above the number of any message that is due then or later in the same second."""
    return due_ms // _SECOND_MS << _COUNT_BITS


def end_of(contents: Contents) -> int:
    """Above the numbers of all that waits; 0 if nothing does."""
    last = max((*(run.last for run in contents.runs), *split(contents.fresh)), default=b"")
    return first_number(due_of(last) + _SECOND_MS) if last > contents.mark else 0


def _lowest(start: Spot | int) -> bytes:
    """What is read from there on lies behind this."""
    return start.entry if isinstance(start, Spot) else at_due(min(MAX_DUE_MS, (start >> _COUNT_BITS) * _SECOND_MS))


def read_page(contents: Contents, start: Spot | int, max_bytes: int, from_ms: int = 0) -> ListingPage:
    """Messages behind a spot, or from a number on, which are due at `from_ms` or later: at most `max_bytes` of content,
    or one.
    """
    low = max(_lowest(start), contents.mark)
    if isinstance(start, Spot):
        asked, second, count = 0, start.number >> _COUNT_BITS, start.number & _MAX_COUNT
    else:
        asked, second, count = start, start >> _COUNT_BITS, -1
    shown: list[Numbered] = []
    reached: Spot | None = None
    cancelled, looked_at, size = b"", 0, 0
    fresh = sorted(entry for entry in split(contents.fresh) if entry > low)
    for chunk in merged([*(run.items(low) for run in contents.runs), iter([fresh])]):
        for entry in chunk:
            if entry <= low:
                continue
            if is_cancel(entry):
                cancelled = entry[:PLACE_BYTES]
                continue
            due_ms = due_of(entry)
            second, count = (second, count + 1) if due_ms // _SECOND_MS == second else (due_ms // _SECOND_MS, 0)
            number = second << _COUNT_BITS | min(count, _MAX_COUNT)
            if number < asked:
                continue
            looked_at += 1
            if entry[:PLACE_BYTES] != cancelled and due_ms >= from_ms and count <= _MAX_COUNT:
                size += size_of(entry)
                if shown and size > max_bytes:
                    return ListingPage(shown, reached, False)
                shown.append(Numbered(number, entry))
            reached = Spot(entry, number)
            if len(shown) == PAGE_MESSAGES or looked_at == LOOK_AT_MOST:
                return ListingPage(shown, reached, False)
    return ListingPage(shown, reached, True)
