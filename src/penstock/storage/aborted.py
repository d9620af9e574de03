"""The aborted transactions of one log, packed: what a read_committed reader has to leave out.

An entry is made when the marker of an aborted transaction is appended or replayed, so entries ascend by the offset of
their marker. They do not ascend by the offset at which they began; `_stable` makes a look-up stop early all the same:
what had not ended when an entry was made, and so may follow behind it, began at or above that offset.

The entries whose markers lie in a segment are kept beside it in an `.aborted` file:

    byte  0  4 bytes  "PSAB"
          4  uint8    format
          5  uint32   crc-32c of everything from byte 9 on
          9  int64    markers below this offset are taken into account
         17  each:    int64 producer id, int64 first offset, int64 offset of the marker, int64 stable offset
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.records.batch import BatchHeader

_MAGIC = b"PSAB"
_FORMAT = 1
_PREAMBLE = struct.Struct(">4sBI")
_END = struct.Struct(">q")
_ENTRY = struct.Struct(">qqqq")


class AbortedTransaction(NamedTuple):
    """Records of this producer from this offset on do not count, up to its next marker."""

    producer_id: int
    first_offset: int


class AbortedEntry(NamedTuple):
    """An aborted transaction as it is kept."""

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int
    """Transactions that ended later began at or above this offset."""


class AbortedIndex:
    """All aborted transactions of a log whose markers it still holds."""

    def __init__(self) -> None:
        self._producers = array("q")
        self._first = array("q")
        self._marker = array("q")
        self._stable = array("q")
        self.removals = 0
        """How often entries were removed: records read before the last removal have to be read again."""

    def __len__(self) -> int:
        return len(self._marker)

    def add(self, entry: AbortedEntry) -> None:
        """Takes in an entry; one that is known already is left out."""
        if self._marker and entry.marker_offset <= self._marker[-1]:
            return
        self._producers.append(entry.producer_id)
        self._first.append(entry.first_offset)
        self._marker.append(entry.marker_offset)
        self._stable.append(entry.stable_offset)

    def behind(self, marker_offset: int) -> list[AbortedEntry]:
        """Those whose markers lie at or behind an offset."""
        return [
            AbortedEntry(self._producers[at], self._first[at], self._marker[at], self._stable[at])
            for at in range(self.ended_below(marker_offset), len(self._marker))
        ]

    def overlapping(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those with offsets in `start` to `end`, by the offset at which they began."""
        found = []
        for at in range(bisect_left(self._marker, start), len(self._marker)):
            if self._first[at] < end:
                found.append(AbortedTransaction(self._producers[at], self._first[at]))
            if self._stable[at] >= end:
                break
        found.sort(key=lambda transaction: transaction.first_offset)
        return found

    def spans(self, end: int) -> AbortedSpans:
        """What of the log below `end` belongs to aborted transactions, as of now."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, marker in zip(self._producers, self._first, self._marker, strict=True):
            if first < end:
                spans.setdefault(producer_id, []).append((first, marker))
        return AbortedSpans(spans)

    def ended_below(self, offset: int) -> int:
        """How many have their markers below `offset`."""
        return bisect_left(self._marker, offset)

    def trim(self, offset: int) -> None:
        """Forgets those whose markers lie below `offset`."""
        gone = self.ended_below(offset)
        if gone:
            for column in (self._producers, self._first, self._marker, self._stable):
                del column[:gone]
            self.removals += 1

    def cut(self, end: int) -> None:
        """Forgets those whose markers lie at or behind `end`."""
        kept = self.ended_below(end)
        if kept < len(self._marker):
            for column in (self._producers, self._first, self._marker, self._stable):
                del column[kept:]
            self.removals += 1

    def to_bytes(self, start: int, end: int) -> bytes:
        """The content of an `.aborted` file for the markers from `start` to `end`."""
        body = bytearray(_END.pack(end))
        for at in range(bisect_left(self._marker, start), bisect_left(self._marker, end)):
            body += _ENTRY.pack(self._producers[at], self._first[at], self._marker[at], self._stable[at])
        return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)


class AbortedSpans:
    """Which batches belong to aborted transactions; a copy that a thread may use."""

    def __init__(self, spans: dict[int, list[tuple[int, int]]]) -> None:
        self._spans = spans
        """By producer: (first offset, offset of the marker), ascending; they do not overlap."""

    def hold(self, header: BatchHeader) -> bool:
        """Whether this is a batch, or the marker, of one of them."""
        spans = self._spans.get(header.producer_id)
        if not spans or not header.is_transactional:
            return False
        at = bisect_left(spans, header.base_offset, key=lambda span: span[1])
        return at < len(spans) and spans[at][0] <= header.base_offset


def read_aborted(content: bytes) -> tuple[int, list[AbortedEntry]]:
    """The offset that an `.aborted` file reaches to, and its entries; ValueError if it is damaged."""
    if len(content) < _PREAMBLE.size + _END.size:
        raise ValueError("too short for a list of aborted transactions")
    magic, format_, crc = _PREAMBLE.unpack_from(content)
    if magic != _MAGIC or format_ != _FORMAT:
        raise ValueError("not a list of aborted transactions of a format known here")
    if crc32c(content[_PREAMBLE.size :]) != crc:
        raise ValueError("the CRC of the list of aborted transactions does not match")
    entries = content[_PREAMBLE.size + _END.size :]
    if len(entries) % _ENTRY.size:
        raise ValueError("the list of aborted transactions ends early")
    (end,) = _END.unpack_from(content, _PREAMBLE.size)
    return end, [AbortedEntry(*fields) for fields in _ENTRY.iter_unpack(entries)]
