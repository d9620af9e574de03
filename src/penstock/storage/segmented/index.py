"""The sparse indexes of one segment: offset to position, and timestamp to offset.

Offsets are relative to the segment's base and, like positions, fit 32 bits; packed arrays keep an entry at 8 and 12
bytes. Each file closes with the size of the `.log` it was made from and a CRC, so that one that is cut, stale or
garbage is never believed:

    .index      entries: uint32 offset, uint32 position     uint64 size of the .log, uint32 crc-32c of all before
    .timeindex  entries: int64 timestamp, uint32 offset     the same
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

from penstock.checksum import crc32c
from penstock.storage.files import Files

MAX_RELATIVE = 0xFFFFFFFF

_U32 = "I" if array("I").itemsize == 4 else "L"
_POSITION = struct.Struct(">II")
_TIME = struct.Struct(">qI")
_SIZE = struct.Struct(">Q")
_CRC = struct.Struct(">I")


class SparseIndex:
    """Entries are added in the order of the log; a look-up gives the nearest entry at or before.

    Look-ups run in threads beside an `add`: what a look-up searches in is filled last.
    """

    __slots__ = ("offsets", "positions", "time_offsets", "times")

    def __init__(self) -> None:
        self.offsets = array(_U32)
        self.positions = array(_U32)
        self.times = array("q")
        self.time_offsets = array(_U32)

    def add(self, relative_offset: int, position: int) -> None:
        self.positions.append(position)
        self.offsets.append(relative_offset)

    def add_time(self, timestamp_ms: int, relative_offset: int) -> None:
        """Notes a timestamp if it is larger than all before."""
        if not self.times or timestamp_ms > self.times[-1]:
            self.time_offsets.append(relative_offset)
            self.times.append(timestamp_ms)

    def position_of(self, relative_offset: int) -> int:
        """A position at which a batch starts, at or before the one that holds the offset."""
        at = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[at] if at >= 0 else 0

    def entry_before(self, relative_offset: int) -> tuple[int, int]:
        """The last known batch that begins below the offset, as (offset, position); the first one's place if none."""
        at = bisect_left(self.offsets, relative_offset) - 1
        return (self.offsets[at], self.positions[at]) if at >= 0 else (0, 0)

    def last_position_up_to(self, position: int) -> int:
        """The last known start of a batch that is not above `position`."""
        at = bisect_right(self.positions, position) - 1
        return self.positions[at] if at >= 0 else 0

    def offset_from(self, position: int) -> int | None:
        """The relative offset of the first known batch at or behind `position`."""
        at = bisect_left(self.positions, position)
        return self.offsets[at] if at < len(self.offsets) else None

    def offset_before_time(self, timestamp_ms: int) -> int:
        """A relative offset below which every timestamp is smaller than `timestamp_ms`."""
        at = bisect_left(self.times, timestamp_ms) - 1
        return self.time_offsets[at] if at >= 0 else 0

    def extend(self, other: SparseIndex, from_position: int) -> None:
        """Takes over the entries of another index of the same segment from a position on."""
        for offset, position in zip(other.offsets, other.positions, strict=True):
            if position >= from_position:
                self.add(offset, position)
        for timestamp_ms, offset in zip(other.times, other.time_offsets, strict=True):
            self.add_time(timestamp_ms, offset)

    def head(self, position: int, relative_offset: int) -> SparseIndex:
        """The entries of what lies before `position`, where the batch with this relative offset begins, or the end."""
        head = SparseIndex()
        kept = bisect_left(self.positions, position)
        head.offsets, head.positions = self.offsets[:kept], self.positions[:kept]
        kept = bisect_left(self.time_offsets, relative_offset)
        head.times, head.time_offsets = self.times[:kept], self.time_offsets[:kept]
        return head

    def to_bytes(self, log_size: int) -> tuple[bytes, bytes]:
        """The contents of the `.index` and the `.timeindex` file for a `.log` of this size."""
        pairs = array(_U32, bytes(len(self.offsets) * _POSITION.size))
        pairs[0::2] = self.offsets
        pairs[1::2] = self.positions
        if sys.byteorder == "little":
            pairs.byteswap()
        times = b"".join(map(_TIME.pack, self.times, self.time_offsets))
        return _closed(pairs.tobytes(), log_size), _closed(times, log_size)

    def save(self, files: Files, positions: Path, times: Path, log_size: int) -> None:
        for path, content in zip((positions, times), self.to_bytes(log_size), strict=True):
            files.create(path).write(0, content)

    @classmethod
    def load(cls, files: Files, positions: Path, times: Path, log_size: int, *, is_growing: bool) -> SparseIndex:
        """ValueError if the files are missing or not what `from_bytes` wants."""
        contents = files.read(positions), files.read(times)
        if contents[0] is None or contents[1] is None:
            raise ValueError("missing")
        return cls.from_bytes(contents[0], contents[1], log_size, is_growing=is_growing)

    @classmethod
    def from_bytes(cls, positions: bytes, times: bytes, log_size: int, *, is_growing: bool = False) -> SparseIndex:
        """ValueError if the bytes are not the two indexes of a `.log` of this size; of one that `is_growing`, at an
        earlier time.
        """
        made_from, entries = _opened(positions, _POSITION.size)
        made_from_too, timed = _opened(times, _TIME.size)
        fits = made_from <= log_size if is_growing else made_from == log_size
        if not fits or made_from_too != made_from:
            raise ValueError(f"made for {made_from} and {made_from_too} bytes, the segment has {log_size}")
        pairs = array(_U32, entries)
        if sys.byteorder == "little":
            pairs.byteswap()
        index = cls()
        index.offsets, index.positions = pairs[0::2], pairs[1::2]
        unpacked = list(_TIME.iter_unpack(timed))
        index.times = array("q", [entry[0] for entry in unpacked])
        index.time_offsets = array(_U32, [entry[1] for entry in unpacked])
        return index


def read_positions(content: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The size of the `.log` that an `.index` file was made from, and its (offset, position) entries."""
    log_size, entries = _opened(content, _POSITION.size)
    return log_size, [(offset, position) for offset, position in _POSITION.iter_unpack(entries)]


def read_times(content: bytes) -> tuple[int, list[tuple[int, int]]]:
    """The size of the `.log` that a `.timeindex` file was made from, and its (timestamp, offset) entries."""
    log_size, entries = _opened(content, _TIME.size)
    return log_size, [(timestamp_ms, offset) for timestamp_ms, offset in _TIME.iter_unpack(entries)]


def _closed(entries: bytes, log_size: int) -> bytes:
    content = entries + _SIZE.pack(log_size)
    return content + _CRC.pack(crc32c(content))


def _opened(content: bytes, entry_bytes: int) -> tuple[int, bytes]:
    """The size of the `.log` and the entries; ValueError if the file is not whole."""
    entries_end = len(content) - _SIZE.size - _CRC.size
    if entries_end < 0 or entries_end % entry_bytes:
        raise ValueError("an index file that does not end with an entry and its closing bytes")
    (crc,) = _CRC.unpack_from(content, entries_end + _SIZE.size)
    if crc32c(content[: -_CRC.size]) != crc:
        raise ValueError("the CRC of an index file does not match")
    (log_size,) = _SIZE.unpack_from(content, entries_end)
    return log_size, content[:entries_end]
