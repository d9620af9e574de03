"""Runs: items in order, in a file that never changes.

    items, each of the width of the run, in blocks of 4096
    directory: for each block its first item, and uint32 crc-32c of the block
    int64   number of items
    int64   the lowest base offset in it
    uint32  width
    uint32  crc-32c of the directory and the three fields above

The directory is in memory. The file is open only while something is read from it: thousands of partitions have several
runs each. A run is made in a thread, written aside, synced and renamed; it counts once the state of the index names it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.errors import StorageError
from penstock.storage.files import File, Files

BLOCK_ITEMS = 4096

_FIELDS = struct.Struct(">qqI")
_CRC = struct.Struct(">I")
_FOOTER_BYTES = _FIELDS.size + _CRC.size
_NO_BASE = (1 << 63) - 1


class DamagedRunError(StorageError):
    """A run is not what it was: the index has to be made anew."""


class Layout(NamedTuple):
    """What an item of a run looks like."""

    width: int
    base_at: int
    """Where its base offset is, 6 bytes."""


class Run:
    """One run; calls may wait for the disk. A reader that has begun goes on, even if the file is removed."""

    __slots__ = ("_crcs", "_files", "_firsts", "_width", "count", "last", "lowest_base", "path")

    def __init__(
        self, files: Files, path: Path, width: int, count: int, lowest_base: int, firsts: list[bytes], crcs: list[int]
    ) -> None:
        self.path = path
        self.count = count
        self.lowest_base = lowest_base
        self._files = files
        self._width = width
        self._firsts = firsts
        self._crcs = crcs
        self.last = self.split(self.block(self._open(), len(firsts) - 1))[-1] if firsts else b""

    def count_between(self, low: bytes, high: bytes) -> int:
        """How many items there are about, and not more; without a look at the disk."""
        if high <= low or self.last < low:
            return 0
        blocks = bisect_left(self._firsts, high) - max(0, bisect_left(self._firsts, low) - 1)
        return min(self.count, blocks * BLOCK_ITEMS)

    def between(self, low: bytes, high: bytes) -> Iterator[memoryview]:
        """The items from `low` on and below `high`, in order, in pieces; both may be the beginnings of items."""
        numbers = range(max(0, bisect_left(self._firsts, low) - 1), bisect_left(self._firsts, high))
        file = self._open() if numbers else None
        for number in numbers:
            assert file is not None
            block = memoryview(self.block(file, number))
            first, last = self._find(block, low), self._find(block, high)
            if first < last:
                yield block[first * self._width : last * self._width]

    def of_each(self, ranges: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
        """The items of several ranges, as `between` has them, which come in order; no block is read twice."""
        file, last, block = self._open(), -1, memoryview(b"")
        for low, high in ranges:
            found: list[bytes] = []
            for number in range(max(0, bisect_left(self._firsts, low) - 1), bisect_left(self._firsts, high)):
                if number != last:
                    last, block = number, memoryview(self.block(file, number))
                first, end = self._find(block, low), self._find(block, high)
                found += self.split(bytes(block[first * self._width : end * self._width]))
            yield found

    def items(self, low: bytes = b"") -> Iterator[list[bytes]]:
        """All items in order, a block at a time, from the block on that has `low` in it."""
        file = self._open()
        for number in range(max(0, bisect_left(self._firsts, low) - 1), len(self._firsts)):
            yield self.split(self.block(file, number))

    @property
    def blocks(self) -> int:
        return len(self._firsts)

    @property
    def first(self) -> bytes:
        return self._firsts[0] if self._firsts else b""

    def _open(self) -> File:
        return self._files.open_to_read(self.path)

    def block(self, file: File, number: int) -> bytes:
        size = min(BLOCK_ITEMS, self.count - number * BLOCK_ITEMS) * self._width
        found = file.read(number * BLOCK_ITEMS * self._width, size)
        if crc32c(found) != self._crcs[number]:
            raise DamagedRunError(f"block {number} of {self.path.name} is damaged")
        return found

    def split(self, block: bytes) -> list[bytes]:
        width = self._width
        return [block[at : at + width] for at in range(0, len(block), width)]

    def _find(self, block: memoryview, item: bytes) -> int:
        low, high, width, size = 0, len(block) // self._width, self._width, len(item)
        while low < high:
            middle = (low + high) // 2
            if bytes(block[middle * width : middle * width + size]) < item:
                low = middle + 1
            else:
                high = middle
        return low


def write_run(files: Files, path: Path, layout: Layout, chunks: Iterable[Sequence[bytes]]) -> Run:
    """A run of these items, which come in order."""
    aside = path.with_name(path.name + ".new")
    file = files.create(aside)
    width, base_at = layout
    lowest, count = _NO_BASE, 0
    firsts: list[bytes] = []
    crcs: list[int] = []
    pending: list[bytes] = []

    def put(block: list[bytes]) -> None:
        nonlocal count
        content = b"".join(block)
        file.write(count * width, content)
        firsts.append(block[0])
        crcs.append(crc32c(content))
        count += len(block)

    for chunk in chunks:
        if chunk:
            lowest = min(lowest, min(int.from_bytes(item[base_at : base_at + 6], "big") for item in chunk))
        pending += chunk
        while len(pending) >= BLOCK_ITEMS:
            put(pending[:BLOCK_ITEMS])
            del pending[:BLOCK_ITEMS]
    if pending:
        put(pending)
    directory = b"".join(first + _CRC.pack(crc) for first, crc in zip(firsts, crcs, strict=True))
    directory += _FIELDS.pack(count, lowest, width)
    file.write(count * width, directory + _CRC.pack(crc32c(directory)))
    file.sync()
    files.rename(aside, path)
    files.sync_folder(path.parent)
    return Run(files, path, width, count, lowest, firsts, crcs)


def open_run(files: Files, path: Path, layout: Layout) -> Run:
    """A run that was written before; StorageError if it is not what it was."""
    try:
        file = files.open_to_read(path)
        size = file.size()
        end = file.read(max(0, size - _FOOTER_BYTES), _FOOTER_BYTES)
        if len(end) == _FOOTER_BYTES:
            count, _, width = _FIELDS.unpack_from(end)
            if width == layout.width and 0 <= count * width <= size - _FOOTER_BYTES:
                directory = file.read(count * width, size - count * width)
                run = _from_directory(files, path, width, directory)
                if run is not None:
                    return run
    except OSError as error:
        raise StorageError(f"{path.name} cannot be read: {error}") from error
    raise StorageError(f"{path.name} is no run, or damaged")


def _from_directory(files: Files, path: Path, width: int, directory: bytes) -> Run | None:
    (crc,) = _CRC.unpack_from(directory, len(directory) - _CRC.size)
    if crc32c(directory[: -_CRC.size]) != crc:
        return None
    count, lowest, _ = _FIELDS.unpack_from(directory, len(directory) - _FOOTER_BYTES)
    firsts, crcs = [], []
    for at in range(0, len(directory) - _FOOTER_BYTES, width + _CRC.size):
        firsts.append(directory[at : at + width])
        crcs.append(_CRC.unpack_from(directory, at + width)[0])
    if len(firsts) != -(-count // BLOCK_ITEMS):
        return None
    return Run(files, path, width, count, lowest, firsts, crcs)


def merged(sources: Iterable[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """The items of several sources, each of which gives its own in order, in order and piece by piece; equal ones once.

    In small pieces, because sorting one holds up the event loop: at most a block of each run at a time.
    """
    left = [(source, items) for source in sources if (items := next(source, []))]
    last = b""
    while left:
        boundary = min(items[-1] for _, items in left)
        chunk: list[bytes] = []
        kept_back: list[tuple[Iterator[list[bytes]], list[bytes]]] = []
        for source, items in left:
            end = bisect_right(items, boundary)
            chunk += items[:end]
            rest = items[end:] or next(source, [])
            if rest:
                kept_back.append((source, rest))
        left = kept_back
        chunk.sort()
        kept = []
        for item in chunk:
            if item != last:
                kept.append(item)
                last = item
        yield kept
