"""What a batch of the companion changes: messages that wait from now on, names, cancels.

Pure. Positions are those in the file, so that a message's content can be read again without its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from penstock.checksum import crc32c
from penstock.delay.delay_headers import CANCEL, DELIVER_AT, SCHEDULE, TIMER_ID, may_have_delay_headers
from penstock.delay.entries import NAMED, RECURS, pack
from penstock.delay.index_files import HASH_BYTES
from penstock.durations import parse_duration
from penstock.records.batch import HEADER_BYTES, BatchHeader
from penstock.records.records import RecordView, encode_header, join_headers, put_content, walk, walk_headers
from penstock.recurrence import Recurrence, parse_recurrence


class Waits(NamedTuple):
    """A message waits; one of the same name no longer does."""

    entry: bytes
    name: bytes | None


class Cancels(NamedTuple):
    """The message of this name no longer waits."""

    name: bytes


Change = Waits | Cancels


def changes(batch: memoryview, header: BatchHeader, position: int) -> Iterator[Change]:
    """What the records of a batch change, which lies at `position` of its file, in order."""
    block = batch[HEADER_BYTES : header.size]
    for record in walk(block, header.record_count):
        content = block[record.content_at : record.end]
        flags, name = 0, None
        if may_have_delay_headers(content):
            headers = {bytes(found.name): found.value for found in walk_headers(block, record)}
            cancelled = headers.get(CANCEL)
            if cancelled is not None:
                yield Cancels(bytes(cancelled))
                continue
            named = headers.get(TIMER_ID)
            if named is not None:
                flags, name = NAMED, bytes(named)
            if SCHEDULE in headers:
                flags |= RECURS
        place = position + HEADER_BYTES + record.content_at
        due_ms = header.base_timestamp + record.timestamp_delta
        yield Waits(pack(due_ms, header.base_offset, place, len(content) | flags, crc32c(content)), name)


def hash_of(name: bytes) -> bytes:
    """The first 60 bits of its SHA-256: 15 of the digits that common tools show. As a number it is an offset."""
    return (int.from_bytes(sha256(name).digest()[:HASH_BYTES], "big") >> 4).to_bytes(HASH_BYTES, "big")


def name_in(content: bytes) -> bytes | None:
    """The timer id of a message."""
    record, block = _as_record(content)
    for header in walk_headers(block, record):
        if header.name == TIMER_ID and header.value is not None:
            return bytes(header.value)
    return None


def recurrence_in(content: bytes) -> Recurrence | None:
    """The schedule of a message."""
    record, block = _as_record(content)
    for header in walk_headers(block, record):
        if header.name == SCHEDULE and header.value is not None:
            return parse_recurrence(bytes(header.value).decode(), parse_duration)
    return None


def occurrence(content: bytes, due_ms: int) -> bytes:
    """What is delivered of a message that recurs: instead of its schedule it says when it was due."""
    record, block = _as_record(content)
    due = encode_header(DELIVER_AT, b"%d" % due_ms)
    encoded: list[bytes | memoryview] = [
        due if header.name == SCHEDULE else block[header.start : header.end] for header in walk_headers(block, record)
    ]
    return bytes(block[record.content_at : record.headers_at]) + join_headers(encoded)


def _as_record(content: bytes) -> tuple[RecordView, memoryview]:
    parts: list[bytes | memoryview] = []
    put_content(parts, content, 0, 0)
    block = memoryview(b"".join(parts))
    return next(walk(block, 1)), block
