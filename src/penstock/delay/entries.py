"""Entries of the due order: 24 bytes each, which sort as the messages are delivered.

     0  48 bits  due time, ms since 1970
     6  48 bits  base offset of the companion's batch
    12  32 bits  position of the record's content in its file
    16  32 bits  its size; bit 31: it recurs; bit 30: it has a timer id; 0: the entry with the same first 16 bytes
                 is cancelled
    20  32 bits  crc-32c of the content

A mark is an entry too: everything at or below it was delivered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

ENTRY_BYTES = 24
PLACE_BYTES = 16
"""The part that says which message it is."""

NOTHING_DELIVERED = bytes(ENTRY_BYTES)

RECURS = 1 << 31
NAMED = 1 << 30
MAX_SIZE = NAMED - 1

_WORDS = struct.Struct(">QQQ")
_CANCELLED = bytes(ENTRY_BYTES - PLACE_BYTES)
_U32 = 0xFFFFFFFF


class Entry(NamedTuple):
    """One message that waits."""

    due_ms: int
    base_offset: int
    position: int
    size: int
    recurs: bool
    is_named: bool
    crc: int


def pack(due_ms: int, base_offset: int, position: int, size: int, crc: int) -> bytes:
    """An entry; `size` comes with its flags."""
    return _WORDS.pack(due_ms << 16 | base_offset >> 32, (base_offset & _U32) << 32 | position, size << 32 | crc)


def unpack(entry: bytes) -> Entry:
    first, second, third = _WORDS.unpack(entry)
    size = third >> 32
    return Entry(
        first >> 16,
        (first & 0xFFFF) << 32 | second >> 32,
        second & _U32,
        size & MAX_SIZE,
        bool(size & RECURS),
        bool(size & NAMED),
        third & _U32,
    )


def due_of(entry: bytes) -> int:
    return int.from_bytes(entry[:6], "big")


def base_of(entry: bytes) -> int:
    return int.from_bytes(entry[6:12], "big")


def size_of(entry: bytes) -> int:
    return int.from_bytes(entry[PLACE_BYTES : PLACE_BYTES + 4], "big") & MAX_SIZE


def is_named(entry: bytes) -> bool:
    return bool(entry[PLACE_BYTES] & 0x40)


def at_due(due_ms: int) -> bytes:
    """Not above any entry that is due then or later, and above all others."""
    return due_ms.to_bytes(6, "big") + bytes(ENTRY_BYTES - 6)


def delayed_to(entry: bytes, due_ms: int) -> bytes:
    """The same message at another time."""
    return due_ms.to_bytes(6, "big") + entry[6:]


def cancelled(entry: bytes) -> bytes:
    """What cancels an entry; it sorts right before it."""
    return entry[:PLACE_BYTES] + _CANCELLED


def is_cancel(entry: bytes) -> bool:
    return entry[PLACE_BYTES:] == _CANCELLED


def live(entries: Iterable[bytes], mark: bytes) -> list[bytes]:
    """Those that wait: behind the mark, and not cancelled by one of the others; in order."""
    found = set(entries)
    gone = {entry[:PLACE_BYTES] for entry in found if is_cancel(entry)}
    return sorted(entry for entry in found if entry > mark and entry[:PLACE_BYTES] not in gone)


def recurs(entry: bytes) -> bool:
    return entry[PLACE_BYTES] >= 0x80
