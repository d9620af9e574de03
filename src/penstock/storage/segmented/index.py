"""The sparse indexes of one segment: offset to position, and timestamp to offset.

Offsets are relative to the segment's base and, like positions, fit 32 bits; packed arrays keep an entry at 8 and 12
bytes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right

POSITION_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

MAX_RELATIVE = 0xFFFFFFFF

_U32 = "I" if array("I").itemsize == 4 else "L"


class SparseIndex:
    """Entries are added in the order of the log; a look-up gives the nearest entry at or before."""

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets = array(_U32)
        self.positions = array(_U32)
        self.times = array("q")
        self.time_offsets = array(_U32)

    def add(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def add_time(self, timestamp_ms: int, relative_offset: int) -> None:
        """Notes a timestamp if it is larger than all before."""
        if not self.times or timestamp_ms > self.times[-1]:
            self.times.append(timestamp_ms)
            self.time_offsets.append(relative_offset)

    def position_of(self, relative_offset: int) -> int:
        """A position at which a batch starts, at or before the one that holds the offset."""
        at = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[at] if at >= 0 else 0

    def last_position_up_to(self, position: int) -> int:
        """The last known start of a batch that is not above `position`."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def offset_before_time(self, timestamp_ms: int) -> int:
        """A relative offset below which every timestamp is smaller than `timestamp_ms`."""
        at = bisect_left(self.times, timestamp_ms) - 1
        return self.time_offsets[at] if at >= 0 else 0

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The contents of the `.index` and the `.timeindex` file."""
        pairs = array(_U32, bytes(len(self.offsets) * POSITION_ENTRY_BYTES))
        pairs[0::2] = self.offsets
        pairs[1::2] = self.positions
        times = bytearray(len(self.times) * TIME_ENTRY_BYTES)
        for at, (timestamp_ms, offset) in enumerate(zip(self.times, self.time_offsets, strict=True)):
            start = at * TIME_ENTRY_BYTES
            times[start : start + 8] = timestamp_ms.to_bytes(8, "big", signed=True)
            times[start + 8 : start + 12] = offset.to_bytes(4, "big")
        if sys.byteorder == "little":
            pairs.byteswap()
        return pairs.tobytes(), bytes(times)

    @classmethod
    def from_bytes(cls, positions: bytes, times: bytes) -> SparseIndex:
        """ValueError if the bytes are not two indexes."""
        if len(positions) % POSITION_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES:
            raise ValueError("an index file ends inside an entry")
        pairs = array(_U32, positions)
        if sys.byteorder == "little":
            pairs.byteswap()
        index = cls()
        index.offsets, index.positions = pairs[0::2], pairs[1::2]
        for start in range(0, len(times), TIME_ENTRY_BYTES):
            index.times.append(int.from_bytes(times[start : start + 8], "big", signed=True))
            index.time_offsets.append(int.from_bytes(times[start + 8 : start + 12], "big"))
        for entries in (index.offsets, index.positions, index.times, index.time_offsets):
            if any(a >= b for a, b in zip(entries, entries[1:], strict=False)):
                raise ValueError("index entries are not ascending")
        return index
