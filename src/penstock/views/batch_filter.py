"""What a view shows of batches: those that match as they are, those that do not left out, the others rewritten.

Pure, and all that is expensive: decompression, looking, compression. It is done in a thread where it is much. A
rewritten batch is as compaction leaves one: its records keep their bytes and their offsets. Only its last offset is
that of its last record: what follows is for the waymark to say, which also moves what a client commits.

A read_committed consumer is not told of aborted transactions here: their records are left out like those that do not
match, and so are all markers, which no consumer is given anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stringzilla import find

from penstock.errors import ApiError
from penstock.records.batch import CODEC_MASK, HEADER_BYTES, BatchHeader, read_header
from penstock.records.records import MalformedRecordError, rebuilt, records_block
from penstock.storage.aborted import AbortedTransaction
from penstock.storage.tags import NO_RECORDS, TagSummary
from penstock.views.tag_matcher import Matcher, Verdict
from penstock.views.tags import Span, checked, spans, spans_around, summary_of, tags_of_record

_WORTH_COMPRESSING_BYTES = 4096
"""Less is sent as it is: to set up a codec takes longer than all else that is done to a batch."""


class ShownBatch(NamedTuple):
    """A batch as the view shows it."""

    content: bytes
    shown_end: int
    """The offset behind its last record."""
    next_offset: int
    """The offset behind the batch in the log, of which this may only be a part."""


@dataclass(slots=True)
class Filtered:
    """What became of some batches."""

    batches: list[ShownBatch] = field(default_factory=list)
    notes: list[tuple[int, int, TagSummary]] = field(default_factory=list)
    """What was found out: base offset, the offset behind, and the summary."""
    next_offset: int = 0
    """Everything below was looked at."""


def filtered(
    data: bytes, matcher: Matcher, aborted: Iterable[AbortedTransaction], settled: Sequence[tuple[int, int]] = ()
) -> Filtered:
    """What a view shows of whole batches that lie one behind the other in a log.

    `aborted` are the aborted transactions that overlap them and are to be left out; in `settled` stretches of offsets
    nothing remains to be found out.
    """
    view, out, position, at = memoryview(data), Filtered(), 0, 0
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    leaving_out: set[int] = set()
    while position + HEADER_BYTES <= len(data):
        header = read_header(data, position)
        batch = view[position : position + header.size]
        if len(batch) < header.size or header.size < HEADER_BYTES:
            break
        position += header.size
        out.next_offset = header.next_offset
        while waiting and waiting[-1].first_offset <= header.last_offset:
            leaving_out.add(waiting.pop().producer_id)
        if header.is_control:
            leaving_out.discard(header.producer_id)
            out.notes.append((header.base_offset, header.next_offset, NO_RECORDS))
            continue
        if header.is_transactional and header.producer_id in leaving_out:
            continue
        while at < len(settled) and settled[at][1] <= header.base_offset:
            at += 1
        is_settled = at < len(settled) and settled[at][0] <= header.base_offset
        try:
            shown, summary = shown_of(batch, header, matcher, is_settled=is_settled)
        except ApiError:
            # It cannot be decoded. Readers of the base topic get such a batch as it is and complain; so do those here.
            shown, summary = batch, None
        if summary is not None:
            out.notes.append((header.base_offset, header.next_offset, summary))
        if shown is not None:
            content = bytes(shown)
            out.batches.append(ShownBatch(content, read_header(content).next_offset, header.next_offset))
    return out


def is_compressed(data: bytes) -> bool:
    """Whether one of these batches is: unpacked, it may be any number of times as large as it looks."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = read_header(data, position)
        if header.codec:
            return True
        position += max(header.size, HEADER_BYTES)
    return False


def shown_of(
    batch: memoryview, header: BatchHeader, matcher: Matcher, *, is_settled: bool = False
) -> tuple[memoryview | bytearray | None, TagSummary | None]:
    """What a view shows of a batch, None for nothing, and the summary of its tags, if it has one and it is new."""
    if not header.record_count:
        return None, NO_RECORDS
    block = bytes(records_block(batch, header))
    summary = None if is_settled else summary_of(block, header.record_count)
    verdict = Verdict.SOME if summary is None else matcher.verdict(summary)
    if verdict is Verdict.SOME and summary is not None and summary.may_be_alike:
        summary = checked(block, header.record_count, summary)
        verdict = matcher.verdict(summary)
    if verdict is not Verdict.SOME:
        return (batch if verdict is Verdict.ALL else None), summary
    kept = bytearray()
    count = latest = last = 0
    for start, end in _candidates(block, header.record_count, matcher):
        record = tags_of_record(block, start, end)
        if not last <= record.offset_delta <= header.last_offset_delta:
            raise MalformedRecordError("a record has an offset that its batch does not have")
        if matcher.matches(record.tags):
            kept += block[start:end]
            latest = max(latest, record.timestamp_delta) if count else record.timestamp_delta
            last = record.offset_delta
            count += 1
    if count == header.record_count:
        return batch, summary
    if not count:
        return None, summary
    changed = header._replace(last_offset_delta=last)
    if len(kept) < _WORTH_COMPRESSING_BYTES:
        changed = changed._replace(attributes=header.attributes & ~CODEC_MASK)
    return rebuilt(changed, bytes(kept), count, latest), summary


def _candidates(block: bytes, count: int, matcher: Matcher) -> Iterable[Span]:
    """The records that may match: those in which a tag occurs, as a tag or anywhere else, that a match must have."""
    if matcher.needs_one_of is None:
        return spans(block, count)
    positions: list[int] = []
    for tag in matcher.needs_one_of:
        position = find(block, tag)
        while position >= 0:
            positions.append(position)
            if len(positions) > count:
                return spans(block, count)  # a common word: nearly all would be taken apart anyway
            position = find(block, tag, position + 1)
    positions.sort()
    return spans_around(block, positions)
