"""What the companion says beside the records that wait: what was delivered, and how transactions ended.

Pure. A note of a delivery is a batch of one record: its key is the mark; its value when it was delivered and, for each
message that recurs and was among them, its place and when it is due again. The leader has worked that out and everybody
else takes it from here, because brokers may not agree on the rules of a time zone. The end of a transaction is a copy
of its marker, with the earliest due time that its records may have as timestamp.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.delay.entries import ENTRY_BYTES, PLACE_BYTES, due_of
from penstock.delay.wishes import CANCEL
from penstock.records.batch import (
    ASIDE_BIT,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    BatchHeader,
    new_header,
    with_header,
)
from penstock.records.compression import Codec, compress
from penstock.records.records import content_of, put_content, records_block, walk
from penstock.replication.beside import Pair

NOTE_BIT = 0x1000
"""A note of a delivery, in the companion only."""
MOVED_BIT = 0x0800
"""Messages that were waiting further back in the companion."""
_TIME = struct.Struct(">q")
_AGAIN_BYTES = PLACE_BYTES + _TIME.size


class Delivered(NamedTuple):
    """Everything up to the mark was delivered."""

    mark: bytes
    now_ms: int
    again: dict[bytes, int]
    """When those that recur are due again, by their places; one that is not in it has come to its end."""


def delivery(contents: Sequence[bytes], done: Delivered, base_offset: int, leader_epoch: int) -> Pair:
    """The pair that delivers messages with these contents, and notes it; there may be none."""
    now_ms = done.now_ms
    records: list[bytes | memoryview] = []
    for delta, content in enumerate(contents):
        put_content(records, content, 0, delta)
    header = new_header(
        base_offset,
        leader_epoch,
        attributes=PAIRED_BIT,
        last_offset_delta=max(0, len(contents) - 1),
        base_timestamp=now_ms if contents else NO_TIMESTAMP,
        max_timestamp=now_ms if contents else NO_TIMESTAMP,
        record_count=len(contents),
    )
    said: list[bytes | memoryview] = []
    again = b"".join(place + _TIME.pack(due_ms) for place, due_ms in done.again.items())
    put_content(said, content_of(done.mark, _TIME.pack(now_ms) + again, ()), 0, 0)
    note = header._replace(attributes=ASIDE_BIT | NOTE_BIT, base_timestamp=now_ms, max_timestamp=now_ms, record_count=1)
    return Pair(
        memoryview(with_header(note, b"".join(said))),
        memoryview(with_header(header, compress(Codec.NONE, b"".join(records)))),
    )


def moving(entries: Sequence[bytes], contents: Sequence[bytes], base_offset: int, leader_epoch: int) -> Pair:
    """The pair that moves messages to the end of the companion: one record that names the entries they had, and theirs.

    The main log's half is empty.
    """
    base_ms = due_of(entries[0])
    records: list[bytes | memoryview] = []
    put_content(records, content_of(b"".join(entries), None, ()), 0, 0)
    for delta, (entry, content) in enumerate(zip(entries, contents, strict=True), 1):
        put_content(records, content, due_of(entry) - base_ms, delta)
    header = new_header(
        base_offset,
        leader_epoch,
        attributes=ASIDE_BIT | MOVED_BIT,
        last_offset_delta=len(entries),
        base_timestamp=base_ms,
        max_timestamp=due_of(entries[-1]),
        record_count=len(entries) + 1,
    )
    return Pair(memoryview(with_header(header, b"".join(records))), memoryview(with_header(_emptied(header), b"")))


def cancelling(names: Sequence[bytes], now_ms: int, base_offset: int, leader_epoch: int) -> Pair:
    """The pair that cancels what waits under these names; the main log's half is empty."""
    records: list[bytes | memoryview] = []
    for delta, name in enumerate(names):
        put_content(records, content_of(None, None, ((CANCEL.decode(), name),)), 0, delta)
    header = new_header(
        base_offset,
        leader_epoch,
        attributes=ASIDE_BIT,
        last_offset_delta=len(names) - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        record_count=len(names),
    )
    return Pair(memoryview(with_header(header, b"".join(records))), memoryview(with_header(_emptied(header), b"")))


def _emptied(header: BatchHeader) -> BatchHeader:
    """The main log's half where nothing is due now."""
    return header._replace(
        attributes=PAIRED_BIT, base_timestamp=NO_TIMESTAMP, max_timestamp=NO_TIMESTAMP, record_count=0
    )


def read_moved(batch: memoryview, header: BatchHeader) -> list[bytes]:
    """The entries that the messages had before, in the order of the records behind the first."""
    named = next(walk(records_block(batch, header), header.record_count)).key
    assert named is not None
    return [bytes(named[at : at + ENTRY_BYTES]) for at in range(0, len(named), ENTRY_BYTES)]


def read_delivered(batch: memoryview, header: BatchHeader) -> Delivered:
    record = next(walk(records_block(batch, header), header.record_count))
    assert record.key is not None and len(record.key) == ENTRY_BYTES and record.value is not None
    value = bytes(record.value)
    again = {
        value[at : at + PLACE_BYTES]: _TIME.unpack_from(value, at + PLACE_BYTES)[0]
        for at in range(_TIME.size, len(value), _AGAIN_BYTES)
    }
    return Delivered(bytes(record.key), _TIME.unpack_from(value)[0], again)


def end_of_transaction(batch: memoryview, header: BatchHeader, not_before_ms: int) -> Pair:
    """The pair that ends a transaction: its marker, and a copy that says from when on its records may be due."""
    records = batch[HEADER_BYTES : header.size]
    copy = header._replace(
        attributes=header.attributes | ASIDE_BIT, base_timestamp=not_before_ms, max_timestamp=not_before_ms
    )
    marker = header._replace(attributes=header.attributes | PAIRED_BIT)
    return Pair(memoryview(with_header(copy, records)), memoryview(with_header(marker, records)))
