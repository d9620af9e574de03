"""Parting a producer's batch: what is due now stays in the main log, what waits goes to the companion.

Pure. Both halves keep the offsets, the producer and its sequences. In the companion's half the timestamp of a record
is its due time, its block is not compressed, and `penstock-delay` has become `penstock-deliver-at`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.delay.wishes import DELAY, DELIVER_AT, DelayRules, Wish, WishError, may_ask, parse_wish
from penstock.errors import ApiError
from penstock.records.batch import (
    ASIDE_BIT,
    CODEC_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    read_header,
    with_header,
)
from penstock.records.records import (
    MalformedRecordError,
    RecordView,
    encode_header,
    join_headers,
    put_content,
    rebuilt,
    records_block,
    walk,
    walk_headers,
)
from penstock.storage.admission import RefusedRecordsError


class Waiting(NamedTuple):
    """One record of a batch that goes to the companion."""

    record: RecordView
    wish: Wish


class Plan(NamedTuple):
    """What becomes of a batch."""

    block: memoryview
    staying: list[RecordView]
    waiting: list[Waiting]
    refused: tuple[tuple[int, str], ...]


class Halves(NamedTuple):
    """The two halves of a batch; the companion's is stamped with the offset and the epoch of the other."""

    aside: bytearray
    kept: bytearray
    earliest_due_ms: int
    """None of its records is due earlier."""
    names: frozenset[bytes]
    """Messages that it may cancel."""


def plan(batch: memoryview, now_ms: int, rules: DelayRules) -> Plan | None:
    """What becomes of a batch that a producer sent; None if none of its records asks for anything.

    Nobody has looked at the batch yet. One whose records cannot be read by anybody is left to others to refuse.
    """
    if len(batch) < HEADER_BYTES:
        return None
    header = read_header(batch)
    try:
        block = records_block(batch, header)
    except ApiError:
        return None
    if not may_ask(block):
        return None
    staying: list[RecordView] = []
    waiting: list[Waiting] = []
    refused: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(walk(block, header.record_count)):
            headers = ((name, value) for name, value, _, _ in walk_headers(block, record))
            try:
                wish = parse_wish(headers, now_ms, rules)
            except WishError as error:
                refused.append((index, str(error)))
                continue
            if wish is None or not wish.waits(now_ms):
                staying.append(record)
            else:
                waiting.append(Waiting(record, wish))
    except MalformedRecordError as error:
        refused.append((0, str(error)))
    return Plan(block, staying, waiting, tuple(refused)) if waiting or refused else None


def part(header: BatchHeader, found: Plan, base_offset: int, leader_epoch: int, not_before_ms: int) -> Halves:
    """Both halves of a batch, of which none is due before `not_before_ms`; RefusedRecordsError if it is refused."""
    if found.refused:
        raise RefusedRecordsError(found.refused)
    dues = [max(waiting.wish.due_ms, not_before_ms) for waiting in found.waiting]
    base_ms = min(dues)
    records: list[bytes | memoryview] = []
    for (record, wish), due_ms in zip(found.waiting, dues, strict=True):
        put_content(records, _content(found.block, record, wish), due_ms - base_ms, record.offset_delta)
    aside = with_header(
        header._replace(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=header.attributes & ~(CODEC_MASK | TIMESTAMP_TYPE_BIT) | ASIDE_BIT,
            base_timestamp=base_ms,
            max_timestamp=max(dues),
            record_count=len(dues),
        ),
        b"".join(records),
    )
    names = frozenset(name for _, wish in found.waiting if (name := wish.timer_id or wish.cancels) is not None)
    return Halves(aside, _kept(header, found, base_offset, leader_epoch), base_ms, names)


def _kept(header: BatchHeader, found: Plan, base_offset: int, leader_epoch: int) -> bytearray:
    """The main log's half: the records that stay, as compaction would leave them."""
    header = header._replace(
        base_offset=base_offset, leader_epoch=leader_epoch, attributes=header.attributes | PAIRED_BIT
    )
    if found.staying:
        block = b"".join(found.block[record.start : record.end] for record in found.staying)
        latest_delta = max(record.timestamp_delta for record in found.staying)
        return rebuilt(header, block, len(found.staying), latest_delta)
    empty = header._replace(
        attributes=header.attributes & ~CODEC_MASK,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return with_header(empty, b"")


def _content(block: memoryview, record: RecordView, wish: Wish) -> memoryview | bytes:
    """Key, value and headers as they are delivered; a schedule keeps its header, to be asked again."""
    headers = list(walk_headers(block, record))
    if all(header.name != DELAY for header in headers):
        return block[record.content_at : record.end]
    due = encode_header(DELIVER_AT, b"%d" % wish.due_ms)
    encoded = [due if header.name == DELAY else block[header.start : header.end] for header in headers]
    return bytes(block[record.content_at : record.headers_at]) + join_headers(encoded)
