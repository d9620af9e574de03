"""What a response is made of: bytes, and ranges of files that the kernel sends without copying them.

A part travels from the storage engine, or from the encoder, to the socket as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Protocol


class FilePart(Protocol):
    """Bytes that lie in a file and can be sent from there; the file stays open as long as this object exists."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...

    def read(self, at: int = 0, size: int | None = None) -> bytes:
        """So many of its bytes, or all, from the one at `at` on."""
        ...


Part = bytes | FilePart


def read_part(part: Part, at: int = 0, size: int | None = None) -> bytes:
    """So many bytes of a part, or all, from the one at `at` on; a range of a file may have to be read from disk."""
    if isinstance(part, bytes):
        return part[at:] if size is None else part[at : at + size]
    return part.read(at, size)


def read_parts(parts: Iterable[Part]) -> bytes:
    """All bytes of these parts."""
    return b"".join(map(read_part, parts))


def are_in_memory(parts: Iterable[Part]) -> bool:
    """Whether none of them is a range of a file."""
    return all(isinstance(part, bytes) for part in parts)


def coalesced(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same bytes in fewer parts: neighbours in memory become one, since each part is sent by a call of its own."""
    found: list[Part] = []
    for is_bytes, group in groupby(parts, key=lambda part: isinstance(part, bytes)):
        together = list(group)
        found += [read_parts(together)] if is_bytes else together
    return tuple(found)


def size_of(parts: Iterable[Part]) -> int:
    """How many bytes they are together."""
    return sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
