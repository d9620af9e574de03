"""Bits that flip in the segment files of a broker that does not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.records.batch import HEADER_BYTES, BatchHeader, read_header


class StoredBatch(NamedTuple):
    path: Path
    position: int
    header: BatchHeader
    content: bytes


def stored_batches(folder: Path) -> Iterator[StoredBatch]:
    """All batches of a log, in order."""
    for path in sorted(folder.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            yield StoredBatch(path, position, header, data[position : position + header.size])
            position += header.size


def flip(batch: StoredBatch, inside: int, bit: int = 4) -> None:
    data = bytearray(batch.path.read_bytes())
    data[batch.position + inside] ^= 1 << bit
    batch.path.write_bytes(data)
