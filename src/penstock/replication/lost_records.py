"""What a damaged part of an internal topic was about, as far as it can be made out.

Nothing of a damaged batch is taken in: one wrong bit in a value is as good as any. But its keys say whose records they
were, and most damage leaves them readable. Where a single flipped bit lies in a key, the CRC says which one.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.errors import PenstockError
from penstock.protocol.varint import uvarint
from penstock.records.batch import CRC_START, HEADER_BYTES, BatchHeader, read_header
from penstock.records.compression import Codec
from penstock.records.records import walk
from penstock.storage.contract import DamagedRange

_SEARCHED_BYTES = 8192
"""In a larger batch the flipped bit of a key is not looked for: that would hold up the broker."""


class LostRange(NamedTuple):
    """Records of an internal topic that cannot be read, and of which no replica has a copy."""

    damage: DamagedRange
    keys: list[bytes]
    """Those that can be made out."""
    is_complete: bool
    """Whether these are all keys, as far as one can tell."""


def lost(damage: DamagedRange, data: bytes) -> LostRange:
    """What is lost with a damaged range, by the bytes that lie there."""
    keys: list[bytes] = []
    view, position, is_complete = memoryview(data), 0, bool(data)
    while len(view) - position >= HEADER_BYTES:
        header = read_header(view, position)
        left = len(view) - position
        size = header.size if HEADER_BYTES <= header.size <= left else left
        found, are_all = _keys(bytearray(view[position : position + size]), header)
        keys += found
        is_complete = is_complete and are_all and size == header.size
        position += size
    return LostRange(damage, keys, is_complete and position == len(view))


def _keys(batch: bytearray, header: BatchHeader) -> tuple[list[bytes], bool]:
    if header.codec != Codec.NONE:
        return [], False
    places: list[tuple[int, int]] = []
    block = memoryview(batch)[HEADER_BYTES:]
    is_whole = True
    try:
        for record in walk(block, header.record_count):
            if record.key is not None:
                # A key follows its length, a zigzag varint.
                length = len(record.key)
                places.append((HEADER_BYTES + record.content_at + len(uvarint(2 * length)), length))
    except (PenstockError, ValueError, IndexError):
        is_whole = False
    del block
    if len(batch) <= _SEARCHED_BYTES:
        _put_right(batch, header.crc, places)
    return [bytes(batch[start : start + size]) for start, size in places], is_whole


def _put_right(batch: bytearray, crc: int, places: list[tuple[int, int]]) -> None:
    """Flips back the one bit of a key that makes the CRC of the batch right, if there is one."""
    for start, size in places:
        for at in range(start, start + size):
            for bit in range(8):
                batch[at] ^= 1 << bit
                if crc32c(memoryview(batch)[CRC_START:]) == crc:
                    return
                batch[at] ^= 1 << bit
