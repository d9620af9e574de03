"""The tags of records: in the header `penstock-tags`, separated by commas.

Pure, and made so that most records need not be taken apart. A header's name stands in the decompressed records as it
is, so a search for it finds every record that could have tags. It may also find the name inside a key or a value; a
caller that needs to know for sure takes the record apart (`tags_of_record`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from penstock.records.records import MalformedRecordError
from penstock.storage.tags import MAX_TAGS, UNTAGGED, TagSummary

TAGS_HEADER = b"penstock-tags"

_TEXT = rb"[^\x00-\x1f]{0,255}"
_SEEN = re.compile(re.escape(TAGS_HEADER) + rb"(?=([\x00-\x7f]" + _TEXT + rb"|[\x80-\xff][\x00-\x7f]" + _TEXT + rb"|))")
"""The name, and what follows it up to the next control character: the value's length, the value, and perhaps more."""
_SAMPLE_BYTES, _TOO_MANY_TAGS = 8192, MAX_TAGS // 2
"""If so little has so many tags already, the rest need not be looked through: too many will be found."""
_NOTHING: frozenset[bytes] = frozenset()
_MAX_VARINT_SHIFT = 63

Span = tuple[int, int]
"""Where a record's bytes begin and end in its block."""


@lru_cache(maxsize=4096)
def split_tags(value: bytes) -> frozenset[bytes]:
    """The tags in the value of a header; blanks around them do not count."""
    return frozenset(tag for item in value.split(b",") if (tag := item.strip()))


def summary_of(block: bytes, count: int) -> TagSummary | None:
    """The summary of a block of records in passing; None if there are too many tags, or one cannot be read so.

    Whether they are alike is left open where a look at each is needed (`checked`).
    """
    sample = _tag_sets(_SEEN.findall(block, 0, _SAMPLE_BYTES)[:-1])
    if sample is None or len(_NOTHING.union(*sample)) > _TOO_MANY_TAGS:
        return None
    seen = _SEEN.findall(block)
    if not seen:
        return UNTAGGED
    sets = _tag_sets(seen)
    if sets is None:
        return None
    tags = _NOTHING.union(*sets)
    return TagSummary(tags, is_alike=False, may_be_alike=len(sets) == 1 and len(seen) == count)


def checked(block: bytes, count: int, summary: TagSummary) -> TagSummary:
    """The summary with certainty whether all records are alike."""
    is_alike = _have_same_headers(block, count) and tags_of_record(block, *next(spans(block, 1))).tags == summary.tags
    return TagSummary(summary.tags, is_alike)


def _tag_sets(seen: list[bytes]) -> set[frozenset[bytes]] | None:
    """The different sets of tags in what was seen behind the header's name; None if one is very long, or no text."""
    sets = set()
    for window in set(seen):
        if not window:
            return None
        length, start = _varint(window, 0)
        if length > len(window) - start:
            return None
        sets.add(split_tags(window[start : start + length]) if length > 0 else _NOTHING)
    return sets


def spans(block: bytes, count: int) -> Iterator[Span]:
    """Where each record begins and ends, or the first of them; fails where there are not so many."""
    start = 0
    try:
        for _ in range(count):
            length, body = _varint(block, start)
            end = body + length
            if not body < end <= len(block):
                raise MalformedRecordError("a record reaches past the end of its batch")
            yield start, end
            start = end
    except IndexError:
        raise MalformedRecordError("a record ends early") from None


def spans_around(block: bytes, positions: Iterable[int]) -> Iterator[Span]:
    """The records in which these positions lie, which ascend."""
    start, end, size = 0, 0, len(block)
    try:
        for position in positions:
            if position < end:
                continue
            while end <= position:
                # A length of one or two bytes, as most are, without a call: this is done for every record.
                start = end
                first = block[start]
                if first < 0x80:
                    end = start + 1 + (first >> 1)
                elif (second := block[start + 1]) < 0x80:
                    end = start + 2 + ((first & 0x7F | second << 7) >> 1)
                else:
                    length, body = _varint(block, start)
                    end = body + max(0, length)
            if end > size:
                raise MalformedRecordError("a record reaches past the end of its batch")
            yield start, end
    except IndexError:
        raise MalformedRecordError("a record ends early") from None


def _have_same_headers(block: bytes, count: int) -> bool:
    """Whether the headers of all records are the same, byte for byte."""
    wanted = None
    try:
        for start, end in spans(block, count):
            headers = block[_headers_at(block, start) : end]
            if wanted is None:
                wanted = headers
            elif headers != wanted:
                return False
    except IndexError:
        raise MalformedRecordError("a record ends early") from None
    return True


def _headers_at(block: bytes, start: int) -> int:
    """Where the headers of the record at a position begin."""
    position = start
    while block[position] > 0x7F:
        position += 1
    position += 2  # and the attributes
    while block[position] > 0x7F:
        position += 1
    position += 1
    while block[position] > 0x7F:
        position += 1
    length, position = _varint(block, position + 1)  # of the key
    if length > 0:
        position += length
    length, position = _varint(block, position)  # of the value
    return position + length if length > 0 else position


class TaggedRecord(NamedTuple):
    """What a view needs to know of a record."""

    timestamp_delta: int
    offset_delta: int
    tags: frozenset[bytes]


def tags_of_record(block: bytes, start: int, end: int) -> TaggedRecord:
    """The record between two positions, taken apart."""
    try:
        _, position = _varint(block, start)
        timestamp_delta, position = _varint(block, position + 1)
        offset_delta, _ = _varint(block, position)
        position = _headers_at(block, start)
        count, position = _varint(block, position)
        tags = _NOTHING
        for _ in range(count):
            length, name = _varint(block, position)
            value_length, value = _varint(block, name + length)
            position = value + max(0, value_length)
            if position > end or length < 0:
                break
            if value_length > 0 and length == len(TAGS_HEADER) and block.startswith(TAGS_HEADER, name):
                tags |= split_tags(block[value:position])
    except IndexError:
        raise MalformedRecordError("a record ends early") from None
    if position != end:
        raise MalformedRecordError("a record's headers do not end where it does")
    return TaggedRecord(timestamp_delta, offset_delta, tags)


def _varint(block: bytes, position: int) -> tuple[int, int]:
    value = block[position]
    position += 1
    if value > 0x7F:
        value &= 0x7F
        shift = 7
        while True:
            byte = block[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > _MAX_VARINT_SHIFT:
                raise MalformedRecordError("a variable-length integer does not end")
    return (value >> 1) ^ -(value & 1), position
