"""Messages of the SDK as records of a batch, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ids import TopicPartition
from penstock.records.batch import HEADER_BYTES, BatchHeader
from penstock.records.records import Record, RecordView, headers_of, walk_fields
from penstock.sdk.ports import Headers, Outgoing, Received

_NO_HEADERS = 0
"""The byte that ends a record without headers."""


def record_of(outgoing: Outgoing, now_ms: int) -> Record:
    """A message as a record; without a time of its own it gets the current one."""
    time_ms = now_ms if outgoing.timestamp_ms is None else outgoing.timestamp_ms
    return Record(outgoing.key, outgoing.value, outgoing.headers, time_ms)


def messages_of(batch: bytes, header: BatchHeader, tp: TopicPartition, from_offset: int = 0) -> Iterator[Received]:
    """The messages of a batch that is not compressed, from an offset on. Raises `MalformedRecordError`."""
    block = batch[HEADER_BYTES : header.size]
    view = memoryview(block)
    for time_delta, offset_delta, key, value, headers_at, end in walk_fields(block, header.record_count):
        offset = header.base_offset + offset_delta
        if offset >= from_offset:
            headers = headers_at_position(view, headers_at, end)
            yield Received(tp.topic, tp.partition, offset, value, key, headers, header.base_timestamp + time_delta)


def headers_at_position(block: memoryview, position: int, end: int) -> Headers:
    """The headers at the end of a record."""
    if block[position] == _NO_HEADERS:
        return ()
    return headers_of(block, RecordView(0, end, 0, 0, None, None, position, position))


def decode_headers(encoded: bytes) -> Headers:
    """What `encode_headers` encoded. Raises `MalformedRecordError`."""
    return headers_at_position(memoryview(encoded), 0, len(encoded))


def size_of(outgoing: Outgoing) -> int:
    """The bytes that count towards `max.message.bytes`."""
    return outgoing.size_bytes + sum(len(name) + len(value or b"") for name, value in outgoing.headers)
