"""Splitting a producer's batch: records that are due now stay in the main log, delayed ones go to the companion.

Pure. Both halves keep the offsets, the producer and its sequences. In the companion's half the timestamp of a record is
its due time, its block is not compressed, and the header `penstock-delay` is replaced by `penstock-deliver-at`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.delay.delay_headers import (
    DELAY,
    DELIVER_AT,
    DelayHeaderError,
    DelayRequest,
    DelayRules,
    may_have_delay_headers,
    parse_delay_headers,
)
from penstock.errors import ApiError
from penstock.records.batch import (
    ASIDE_BIT,
    CODEC_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    PAIRED_BIT,
    TRANSACTIONAL_BIT,
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
from penstock.storage.admission import MAX_RECORD_ERRORS, RefusedRecordsError


class DelayedRecord(NamedTuple):
    """One record of a batch that goes to the companion."""

    record: RecordView
    request: DelayRequest
    content: memoryview | bytes
    """Its key, value and headers as they are delivered."""


class SplitPlan(NamedTuple):
    """What becomes of a batch."""

    block: memoryview
    staying: list[RecordView]
    waiting: list[DelayedRecord]
    refused: tuple[tuple[int, str], ...]


class SplitBatch(NamedTuple):
    """The two halves of a batch; the companion's is stamped with the offset and the epoch of the other."""

    aside: bytearray
    kept: bytearray
    earliest_due_ms: int
    """None of its records is due earlier."""
    names: frozenset[bytes]
    """Messages that it may cancel."""


def plan_split(batch: memoryview, now_ms: int, rules: DelayRules) -> SplitPlan | None:
    """Like `plan_split_of_records`, for a batch as it was sent; None also if its records are unreadable."""
    if len(batch) < HEADER_BYTES:
        return None
    header = read_header(batch)
    try:
        block = records_block(batch, header)
    except ApiError:
        return None
    return plan_split_of_records(header, block, now_ms, rules)


def plan_split_of_records(header: BatchHeader, block: memoryview, now_ms: int, rules: DelayRules) -> SplitPlan | None:
    """What becomes of a batch with these decompressed records; None if none of them asks for anything."""
    if not may_have_delay_headers(block):
        return None
    staying: list[RecordView] = []
    waiting: list[DelayedRecord] = []
    refused: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(walk(block, header.record_count)):
            headers = ((name, value) for name, value, _, _ in walk_headers(block, record))
            try:
                request = parse_delay_headers(headers, now_ms, rules)
            except DelayHeaderError as error:
                refused.append((index, str(error)))
                if len(refused) == MAX_RECORD_ERRORS:
                    break
                continue
            if request is None or not request.waits(now_ms):
                staying.append(record)
            else:
                waiting.append(DelayedRecord(record, request, _content(block, record, request)))
    except MalformedRecordError as error:
        refused.append((0, str(error)))
    return SplitPlan(block, staying, waiting, tuple(refused)) if waiting or refused else None


def split_batch(
    header: BatchHeader, found: SplitPlan, base_offset: int, leader_epoch: int, not_before_ms: int
) -> SplitBatch:
    """Both halves of a batch, of which none is due before `not_before_ms`; RefusedRecordsError if it is refused."""
    if found.refused:
        raise RefusedRecordsError(found.refused)
    dues = [max(waiting.request.due_ms, not_before_ms) for waiting in found.waiting]
    base_ms = min(dues)
    records: list[bytes | memoryview] = []
    for (record, _, content), due_ms in zip(found.waiting, dues, strict=True):
        put_content(records, content, due_ms - base_ms, record.offset_delta)
    aside = with_header(
        header._replace(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            # Other bits say that it is a note of ours; a producer may have set them.
            attributes=header.attributes & TRANSACTIONAL_BIT | ASIDE_BIT,
            base_timestamp=base_ms,
            max_timestamp=max(dues),
            record_count=len(dues),
        ),
        b"".join(records),
    )
    names = frozenset(
        name for _, request, _ in found.waiting if (name := request.timer_id or request.cancels) is not None
    )
    return SplitBatch(aside, _kept(header, found, base_offset, leader_epoch), base_ms, names)


def _kept(header: BatchHeader, found: SplitPlan, base_offset: int, leader_epoch: int) -> bytearray:
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


def _content(block: memoryview, record: RecordView, request: DelayRequest) -> memoryview | bytes:
    """Key, value and headers as they are delivered; a schedule keeps its header, to be asked again."""
    headers = list(walk_headers(block, record))
    if all(header.name != DELAY for header in headers):
        return block[record.content_at : record.end]
    due = encode_header(DELIVER_AT, b"%d" % request.due_ms)
    encoded = [due if header.name == DELAY else block[header.start : header.end] for header in headers]
    return bytes(block[record.content_at : record.headers_at]) + join_headers(encoded)
