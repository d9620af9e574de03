"""Batches that a broker itself writes to a companion: deliveries, moves, cancels, ends of transactions, mark resets.

Pure. A delivery is a batch of one record: its key is the mark; its value is the time of the delivery and, for each
recurring message among those delivered, its place and when it is due again. The leader computes these times and every
replica takes them from the batch, because brokers may have different time zone rules. The end of a transaction is a
copy of its marker whose timestamp is the earliest due time that its records may have. A mark reset is a batch of one
record: its value is the time of the new mark and, for each schedule that is now due at another time, its entry and that
time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.delay.delay_headers import CANCEL
from penstock.delay.entries import ENTRY_BYTES, PLACE_BYTES, due_of
from penstock.records.batch import (
    ASIDE_BIT,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    BatchHeader,
    new_header,
    read_header,
    with_header,
)
from penstock.records.compression import Codec, compress
from penstock.records.records import content_of, put_content, records_block, walk
from penstock.replication.companion_pair import Pair

NOTE_BIT = 0x1000
"""A note of a delivery, in the companion only."""
MOVED_BIT = 0x0800
"""Messages that were waiting further back in the companion."""
RESET_BIT = 0x0400
"""The mark was reset, because the leader's clock is behind it."""
_TIME = struct.Struct(">q")
_AGAIN_BYTES = PLACE_BYTES + _TIME.size
_MOVED_BYTES = ENTRY_BYTES + _TIME.size


class Delivered(NamedTuple):
    """Everything up to the mark was delivered."""

    mark: bytes
    now_ms: int
    again: dict[bytes, int]
    """When those that recur are due again, by their places; one that is not in it has come to its end."""


class MarkReset(NamedTuple):
    """The mark goes back to a time; whatever was delivered before stays delivered."""

    now_ms: int
    moved: dict[bytes, int]
    """Entries of schedules, and when they are due from now on."""


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


def relocation(entries: Sequence[bytes], contents: Sequence[bytes], base_offset: int, leader_epoch: int) -> Pair:
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


def cancellation(names: Sequence[bytes], now_ms: int, base_offset: int, leader_epoch: int) -> Pair:
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


def mark_reset(reset: MarkReset, base_offset: int, leader_epoch: int) -> Pair:
    """The pair that resets the mark; the main log's half is empty."""
    records: list[bytes | memoryview] = []
    moved = b"".join(entry + _TIME.pack(due_ms) for entry, due_ms in reset.moved.items())
    put_content(records, content_of(None, _TIME.pack(reset.now_ms) + moved, ()), 0, 0)
    header = new_header(
        base_offset,
        leader_epoch,
        attributes=ASIDE_BIT | RESET_BIT,
        last_offset_delta=0,
        base_timestamp=reset.now_ms,
        max_timestamp=reset.now_ms,
        record_count=1,
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


def read_reset(batch: memoryview, header: BatchHeader) -> MarkReset:
    record = next(walk(records_block(batch, header), header.record_count))
    assert record.value is not None
    value = bytes(record.value)
    moved = {
        value[at : at + ENTRY_BYTES]: _TIME.unpack_from(value, at + ENTRY_BYTES)[0]
        for at in range(_TIME.size, len(value), _MOVED_BYTES)
    }
    return MarkReset(_TIME.unpack_from(value)[0], moved)


def transaction_end(marker: memoryview, base_offset: int, leader_epoch: int, not_before_ms: int) -> Pair:
    """The pair that ends a transaction: its marker, and a copy that says from when on its records may be due."""
    header = read_header(marker)._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    records = marker[HEADER_BYTES : header.size]
    copy = header._replace(
        attributes=header.attributes | ASIDE_BIT, base_timestamp=not_before_ms, max_timestamp=not_before_ms
    )
    kept = header._replace(attributes=header.attributes | PAIRED_BIT)
    return Pair(memoryview(with_header(copy, records)), memoryview(with_header(kept, records)))
