"""The records inside a batch: walked where single records must be seen (compaction, look-up by time, dumps), never on
the hot path.

    varint  length of what follows          varint  key length, -1 for null; key
    int8    attributes, unused              varint  value length, -1 for null; value
    varint  timestamp minus the batch's     varint  number of headers; each: varint length, name,
    varint  offset minus the batch's                varint length, -1 for null, value

Variable-length integers are zigzag coded. Both deltas are relative to the batch header, so a record's bytes can be
moved to another batch with the same base unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.errors import ApiError, Code
from penstock.records.batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, new_header, read_header, with_header
from penstock.records.compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress

_MAX_U64 = (1 << 64) - 1

Headers = tuple[tuple[str, bytes | None], ...]


class RecordView(NamedTuple):
    """One record: where its bytes lie in the decompressed block, and its parts as views."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: memoryview | None
    value: memoryview | None
    headers_at: int
    content_at: int
    """Where the key begins: from here to the end nothing changes when the record is moved to another batch."""


class Record(NamedTuple):
    """A record's content, to build a batch from."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0


class MalformedRecordError(ApiError):
    """A batch whose records do not have the shape its header claims."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.INVALID_RECORD, reason)


def records_block(batch: memoryview, header: BatchHeader, limit: int = MAX_DECOMPRESSED_BYTES) -> memoryview:
    """The decompressed records of a batch; UnpackedTooLargeError if they are more than `limit` bytes."""
    return memoryview(decompress(header.codec, batch[HEADER_BYTES : header.size], limit))


def walk(block: memoryview, count: int) -> Iterator[RecordView]:
    """The records of a decompressed block; fails where they are not exactly `count` well-formed ones."""
    position = 0
    for _ in range(count):
        start = position
        length, position = _varint(block, position)
        end = position + length
        if length < 6 or end > len(block):
            raise MalformedRecordError("a record reaches past the end of its batch")
        timestamp_delta, position = _varint(block, position + 1)
        offset_delta, position = _varint(block, position)
        content_at = position
        key, position = _nullable(block, position, end)
        value, position = _nullable(block, position, end)
        if position >= end:
            raise MalformedRecordError("a record has no room for its headers")
        yield RecordView(start, end, timestamp_delta, offset_delta, key, value, position, content_at)
        position = end
    if position != len(block):
        raise MalformedRecordError(f"the batch holds more than the {count} records that its header claims")


RecordFields = tuple[int, int, bytes | None, bytes | None, int, int]
"""Timestamp delta, offset delta, key, value, where the headers begin, and where the record ends."""


def walk_fields(block: bytes, count: int) -> Iterator[RecordFields]:
    """Like `walk`, for callers that parse every record: three times as fast, because most integers have one byte."""
    position, size = 0, len(block)
    view = memoryview(block)
    try:
        for _ in range(count):
            length, position = block[position], position + 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            else:
                length, position = _varint(view, position - 1)
            end = position + length
            if length < 6 or end > size:
                raise MalformedRecordError("a record reaches past the end of its batch")
            time_delta, position = block[position + 1], position + 2
            if time_delta < 0x80:
                time_delta = time_delta >> 1 ^ -(time_delta & 1)
            else:
                time_delta, position = _varint(view, position - 1)
            offset_delta, position = block[position], position + 1
            if offset_delta < 0x80:
                offset_delta = offset_delta >> 1 ^ -(offset_delta & 1)
            else:
                offset_delta, position = _varint(view, position - 1)
            length, start = block[position], position + 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            else:
                length, start = _varint(view, position)
            position = start + length if length >= 0 else start
            key = block[start:position] if length >= 0 else None
            if length < -1 or position > end:
                raise MalformedRecordError("a field reaches past the end of its record")
            length, start = block[position], position + 1
            if length < 0x80:
                length = length >> 1 ^ -(length & 1)
            else:
                length, start = _varint(view, position)
            position = start + length if length >= 0 else start
            value = block[start:position] if length >= 0 else None
            if length < -1 or position > end:
                raise MalformedRecordError("a field reaches past the end of its record")
            if position >= end:
                raise MalformedRecordError("a record has no room for its headers")
            yield time_delta, offset_delta, key, value, position, end
            position = end
    except IndexError:
        raise MalformedRecordError("a record ends early") from None
    if position != size:
        raise MalformedRecordError(f"the batch holds more than the {count} records that its header claims")


class HeaderView(NamedTuple):
    """One header of a record, and where it lies in the block."""

    name: memoryview
    value: memoryview | None
    start: int
    end: int


def walk_headers(block: memoryview, record: RecordView) -> Iterator[HeaderView]:
    """The headers of one record, as they lie there."""
    count, position = _varint(block[: record.end], record.headers_at)
    if not 0 <= count <= record.end - position:
        raise MalformedRecordError(f"a record claims {count} headers")
    for _ in range(count):
        start = position
        name, position = _nullable(block, position, record.end)
        value, position = _nullable(block, position, record.end)
        if name is None:
            raise MalformedRecordError("a header has no name")
        yield HeaderView(name, value, start, position)


def headers_of(block: memoryview, record: RecordView) -> Headers:
    """The headers of one record."""
    return tuple(
        (str(name, "utf-8", "replace"), None if value is None else bytes(value))
        for name, value, _, _ in walk_headers(block, record)
    )


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    attributes: int = 0,
) -> bytearray:
    """A batch of these records with consecutive offsets."""
    kept = list(records)
    base_timestamp = kept[0].timestamp_ms
    parts: list[bytes | memoryview] = []
    for delta, record in enumerate(kept):
        _put_record(parts, record, record.timestamp_ms - base_timestamp, delta)
    header = new_header(
        base_offset,
        leader_epoch,
        attributes=attributes | codec,
        last_offset_delta=len(kept) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in kept),
        record_count=len(kept),
    )
    header = header._replace(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    return with_header(header, compress(codec, b"".join(parts)))


def recompress(batch: memoryview, codec: Codec, block: memoryview | None = None) -> memoryview:
    """The same batch in another codec, made of its decompressed records if they are at hand; what it was in already is
    returned as it is.
    """
    header = read_header(batch)
    if header.codec == codec:
        return batch
    packed = compress(codec, records_block(batch, header) if block is None else block)
    return memoryview(with_header(header._replace(attributes=header.attributes & ~0x07 | codec), packed))


def rebuilt(header: BatchHeader, records: bytes, count: int, latest_delta: int) -> bytearray:
    """A batch of which only some records are left: their bytes, how many, and the largest of their timestamp deltas."""
    max_timestamp = header.max_timestamp
    if not header.uses_append_time:
        # Deltas come from the producer: whatever they say, the largest timestamp does not grow and fits its field.
        max_timestamp = min(max_timestamp, max(header.base_timestamp + latest_delta, NO_TIMESTAMP))
    changed = header._replace(record_count=count, max_timestamp=max_timestamp)
    return with_header(changed, compress(header.codec, records))


def _varint(block: memoryview, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    try:
        while True:
            byte = block[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > _MAX_U64:
                    raise MalformedRecordError("a variable-length integer has more than 64 bits")
                return (value >> 1) ^ -(value & 1), position
            shift += 7
            if shift > 63:
                raise MalformedRecordError("a variable-length integer does not end")
    except IndexError:
        raise MalformedRecordError("a record ends early") from None


def _nullable(block: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    length, position = _varint(block, position)
    if length == -1:
        return None, position
    if length < -1 or position + length > end:
        raise MalformedRecordError("a field reaches past the end of its record")
    return block[position : position + length], position + length


class EncodedRecords(NamedTuple):
    """Records of one batch as they are written, with consecutive offsets and all of the batch's time."""

    parts: list[bytes]
    record_count: int


_VARINTS_KEPT = 1 << 14


class _Varints(dict[int, bytes]):
    """Integers as they are written: the usual lengths and deltas are kept once they were needed."""

    def __missing__(self, value: int) -> bytes:
        out = bytearray()
        rest = (value << 1) ^ (value >> 63)
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
        made = bytes(out)
        if -1 <= value < _VARINTS_KEPT:
            self[value] = made
        return made


_VARINT = _Varints()


def content_of(key: bytes | memoryview | None, value: bytes | memoryview | None, headers: Headers) -> bytes:
    """The part of a record that is the same in every batch: key, value and headers."""
    return b"".join(
        (
            _VARINT[-1 if key is None else len(key)],
            key or b"",
            _VARINT[-1 if value is None else len(value)],
            value or b"",
            encode_headers(headers),
        )
    )


def record_head(key: bytes, value_bytes: int, offset_delta: int) -> bytes:
    """What stands before the value in a record of the batch's own time; behind a value without headers stands
    `NO_HEADERS`.
    """
    head = b"".join(
        (b"\0", _VARINT[0], _VARINT[offset_delta], _VARINT[len(key)], key, _VARINT[value_bytes]),
    )
    return _VARINT[len(head) + value_bytes + len(NO_HEADERS)] + head


NO_HEADERS = b"\0"


def put_content(
    out: list[bytes | memoryview], content: bytes | memoryview, timestamp_delta: int, offset_delta: int
) -> None:
    """Adds a record with this content to those of a batch."""
    stamp, offset = _VARINT[timestamp_delta], _VARINT[offset_delta]
    out += (_VARINT[1 + len(stamp) + len(offset) + len(content)], b"\0", stamp, offset, content)


def put_fields(
    out: list[bytes | memoryview],
    key: bytes | None,
    value: bytes | None,
    headers: bytes,
    timestamp_delta: int,
    offset_delta: int,
) -> int:
    """Adds a record with these encoded headers to those of a batch; gives how many bytes its content has."""
    stamp, offset = _VARINT[timestamp_delta], _VARINT[offset_delta]
    key_length, key = (_VARINT[-1], b"") if key is None else (_VARINT[len(key)], key)
    value_length, value = (_VARINT[-1], b"") if value is None else (_VARINT[len(value)], value)
    size = len(key_length) + len(key) + len(value_length) + len(value) + len(headers)
    length = _VARINT[1 + len(stamp) + len(offset) + size]
    out += (length, b"\0", stamp, offset, key_length, key, value_length, value, headers)
    return size


def _put_record(out: list[bytes | memoryview], record: Record, timestamp_delta: int, offset_delta: int) -> None:
    put_content(out, content_of(record.key, record.value, record.headers), timestamp_delta, offset_delta)


def encode_headers(headers: Headers) -> bytes:
    """The end of a record."""
    if not headers:
        return NO_HEADERS
    return join_headers([encode_header(name.encode(), value) for name, value in headers])


def encode_header(name: bytes, value: bytes | None) -> bytes:
    return b"".join((_VARINT[len(name)], name, _VARINT[-1 if value is None else len(value)], value or b""))


def join_headers(encoded: Sequence[bytes | memoryview]) -> bytes:
    """The end of a record, of headers that are encoded already."""
    return b"".join((_VARINT[len(encoded)], *encoded))
