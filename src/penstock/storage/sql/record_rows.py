"""Record batches as rows of a partition's table, and rows as record batches. Pure; `docs/internals/sql.md`.

A row has everything of its record that a consumer can see. What a batch has in common is in each of its rows; its
compression, its borders and its sequence numbers are not: neighbours that agree form a batch again, another one
perhaps, which is not compressed. They may come from different producers, and a record has its timestamp as a 64-bit
distance from the batch's: a timestamp too far from that begins a batch of its own, or it would change those of others.

The headers of a record are in three columns. `biz_id` and `tags` have the values of two headers, to be looked for and
to be read by people. If these two come first, in this order and once, and are text that fits, `headers` has only the
rest; else it has all of them, and the columns repeat what they can. So what the columns have and `headers` does not
name comes first: that makes sense of a row that was inserted by hand, too.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from penstock.records.batch import (
    CONTROL_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    new_header,
    with_header,
)
from penstock.records.records import (
    NO_HEADERS,
    MalformedRecordError,
    RecordView,
    encode_header,
    join_headers,
    put_fields,
    records_block,
    walk_fields,
    walk_headers,
)

COLUMNS = (
    "id",
    "biz_id",
    "tags",
    "msg_key",
    "body",
    "headers",
    "send_time",
    "receive_time",
    "attributes",
    "producer_id",
    "producer_epoch",
)
MAX_BIZ_ID = 255
MAX_TAGS = 1024

MAX_BATCH_BYTES = 1 << 20
"""So many bytes of records form a batch, or one record that is larger."""
MAX_DELTA = (1 << 31) - 1
"""A batch cannot span more offsets."""

_BIZ_ID = b"penstock-biz-id"
_TAGS = b"penstock-tags"
_KEPT_BYTES = 256
"""The columns of headers that are not longer are kept: most records have the same as others."""
_NO_HEADERS = 0
_KEPT_BITS = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
"""Of the attributes of a batch. The others say how its bytes are stored, here or elsewhere."""
_MIN_INT64, _MAX_INT64 = -(1 << 63), (1 << 63) - 1

Row = tuple[Any, ...]
"""Values in the order of COLUMNS."""


class HeaderColumns(NamedTuple):
    biz_id: str | None
    tags: str | None
    headers: str | None


_NO_COLUMNS = HeaderColumns(None, None, None)


def rows_of(batch: memoryview, header: BatchHeader, receive_time_ms: int) -> list[Row]:
    """The rows of a stamped batch; ApiError if its records cannot be read, or are not where its header says."""
    block = bytes(records_block(batch, header))
    base_id, attributes = header.base_offset + 1, header.attributes & _KEPT_BITS
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    return [
        (
            base_id + delta,
            biz_id,
            tags,
            key,
            value,
            headers,
            time,
            receive_time_ms,
            attributes,
            producer_id,
            producer_epoch,
        )
        for delta, (biz_id, tags, headers), key, value, time in _contents(header, block)
    ]


def check_records(header: BatchHeader, block: memoryview) -> None:
    """ApiError if `rows_of` would refuse a batch with these decompressed records."""
    for _ in _contents(header, bytes(block)):
        pass


def _contents(
    header: BatchHeader, block: bytes
) -> Iterator[tuple[int, HeaderColumns, bytes | None, bytes | None, int]]:
    """Of each record: its offset in the batch, the columns of its headers, key, value and timestamp."""
    base_time, append_time = header.base_timestamp, header.max_timestamp if header.uses_append_time else None
    last_delta, before = header.last_offset_delta, -1
    for time_delta, delta, key, value, headers_at, end in walk_fields(block, header.record_count):
        if not before < delta <= last_delta:
            raise MalformedRecordError(f"a record has offset {delta} in its batch, behind {before}")
        before = delta
        time = base_time + time_delta if append_time is None else append_time
        if not _MIN_INT64 <= time <= _MAX_INT64:
            raise MalformedRecordError(f"the timestamp of the record at offset {delta} does not fit in 64 bits")
        if end - headers_at == 1 and block[headers_at] == _NO_HEADERS:
            columns = _NO_COLUMNS
        elif end - headers_at <= _KEPT_BYTES:
            columns = _kept_columns(block[headers_at:end])
        else:
            columns = _columns(block[headers_at:end])
        yield delta, columns, key, value, time


def _columns(encoded: bytes) -> HeaderColumns:
    """Of the end of a record."""
    record = RecordView(0, len(encoded), 0, 0, None, None, 0, 0)
    return header_columns(
        [
            (bytes(name), None if value is None else bytes(value))
            for name, value, _, _ in walk_headers(memoryview(encoded), record)
        ]
    )


def header_columns(pairs: list[tuple[bytes, bytes | None]]) -> HeaderColumns:
    """The columns of a record's headers."""
    names = [name for name, _ in pairs]
    biz_id = _column(pairs, names, _BIZ_ID, MAX_BIZ_ID)
    tags = _column(pairs, names, _TAGS, MAX_TAGS)
    first = [name for name, text in ((_BIZ_ID, biz_id), (_TAGS, tags)) if text is not None]
    rest = pairs[len(first) :]
    if names[: len(first)] != first or any(name in (_BIZ_ID, _TAGS) for name, _ in rest):
        rest = pairs
    return HeaderColumns(biz_id, tags, _to_json(rest) if rest else None)


_kept_columns = lru_cache(maxsize=4096)(_columns)


def _column(pairs: list[tuple[bytes, bytes | None]], names: list[bytes], name: bytes, limit: int) -> str | None:
    """The value of a header as text; None if it has none, or none that a database can hold in such a column."""
    if name not in names:
        return None
    text = _text(pairs[names.index(name)][1] or b"\0")
    return text if text is not None and len(text) <= limit else None


def _text(value: bytes) -> str | None:
    """None for what is not UTF-8, or has a character that PostgreSQL does not take."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _to_json(pairs: Iterable[tuple[bytes, bytes | None]]) -> str:
    return json.dumps(
        [[_spelled(name), None if value is None else _spelled(value)] for name, value in pairs],
        ensure_ascii=False,
        separators=(",", ":"),
    )


def _spelled(value: bytes) -> str | dict[str, str]:
    text = _text(value)
    return {"base64": b64encode(value).decode()} if text is None else text


def batches_of(rows: Iterable[Row], epoch_at: EpochAt, max_bytes: int = MAX_BATCH_BYTES) -> Iterator[bytearray]:
    """The batches that rows in the order of their ids form. A batch is ended by what its rows do not have in common,
    and by its size.
    """
    building: _Building | None = None
    for row in rows:
        offset = row[0] - 1
        time = row[6] if row[6] is not None else row[7] if row[7] is not None else NO_TIMESTAMP
        if building is None or not building.takes(row, offset, time, max_bytes):
            if building is not None:
                yield building.batch()
            building = _Building(row, offset, time, epoch_at(offset), epoch_at.until)
        building.add(offset, time, row)
    if building is not None:
        yield building.batch()


class PlainRows(NamedTuple):
    """Rows of consecutive offsets that differ in time, value and perhaps key alone, and have no headers. Most topics
    have no others, and few columns cost less than all.
    """

    base_offset: int
    leader_epoch: int
    shared: tuple[int, int, int]
    has_keys: bool

    @property
    def columns(self) -> str:
        return "send_time, body, msg_key" if self.has_keys else "send_time, body"


def may_be_plain(attributes: int) -> bool:
    """Whether rows with these attributes form a batch whatever their times are."""
    return not attributes & (CONTROL_BIT | TIMESTAMP_TYPE_BIT)


def plain_batches(plain: PlainRows, rows: Sequence[Row], max_bytes: int = MAX_BATCH_BYTES) -> Iterator[bytearray]:
    """The batches that rows of `plain.columns` form: the same that `batches_of` makes of all columns."""
    start = 0
    while start < len(rows):
        base_time = max_time = rows[start][0]
        parts: list[bytes | memoryview] = []
        size = delta = 0
        for row in islice(rows, start, None):
            if size >= max_bytes:
                break
            time, value = row[0], row[1]
            if not _MIN_INT64 <= time - base_time <= _MAX_INT64:
                break
            key = row[2] if plain.has_keys else None
            size += put_fields(
                parts,
                key if key is None or type(key) is bytes else bytes_in(key),
                value if value is None or type(value) is bytes else bytes_in(value),
                NO_HEADERS,
                time - base_time,
                delta,
            )
            delta += 1
            if time > max_time:
                max_time = time
        header = new_header(
            plain.base_offset + start,
            plain.leader_epoch,
            attributes=plain.shared[0] & _KEPT_BITS,
            last_offset_delta=delta - 1,
            base_timestamp=base_time,
            max_timestamp=max_time,
            record_count=delta,
        )
        yield _with_records(header, plain.shared, parts)
        start += delta


def _with_records(
    header: BatchHeader, shared: tuple[int | None, int | None, int | None], parts: Sequence[bytes | memoryview]
) -> bytearray:
    _, producer_id, producer_epoch = shared
    return with_header(
        header._replace(
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_epoch is None else producer_epoch,
        ),
        b"".join(parts),
    )


class EpochAt:
    """The leader epoch at an offset, for offsets that ascend."""

    def __init__(self, starts: Sequence[tuple[int, int]]) -> None:
        self._starts = starts
        self._at = -1

    @property
    def until(self) -> int | None:
        """Where the epoch that was told last ends; None if it goes on."""
        return self._starts[self._at + 1][1] if self._at + 1 < len(self._starts) else None

    def __call__(self, offset: int) -> int:
        starts = self._starts
        while self._at + 1 < len(starts) and starts[self._at + 1][1] <= offset:
            self._at += 1
        return starts[self._at][0] if self._at >= 0 else -1


class _Building:
    """A batch that grows."""

    __slots__ = (
        "_base_offset",
        "_base_time",
        "_border",
        "_count",
        "_is_single",
        "_last_offset",
        "_leader_epoch",
        "_max_time",
        "_parts",
        "_shared",
        "_size",
        "_uses_append_time",
    )

    def __init__(self, row: Row, base_offset: int, base_time: int, leader_epoch: int, until: int | None) -> None:
        attributes = row[8] or 0
        self._shared = row[8:]
        self._base_offset = self._last_offset = base_offset
        self._base_time = self._max_time = base_time
        self._leader_epoch = leader_epoch
        border = base_offset + MAX_DELTA + 1
        self._border = border if until is None else min(until, border)
        # Clients look at one record of a control batch.
        self._is_single = bool(attributes & CONTROL_BIT)
        # All records of a batch with the time of the append have one time.
        self._uses_append_time = bool(attributes & TIMESTAMP_TYPE_BIT)
        self._count = self._size = 0
        self._parts: list[bytes | memoryview] = []

    def takes(self, row: Row, offset: int, time: int, max_bytes: int) -> bool:
        return (
            row[8:] == self._shared
            and offset < self._border
            and self._size < max_bytes
            and not self._is_single
            and (not self._uses_append_time or time == self._base_time)
            and _MIN_INT64 <= time - self._base_time <= _MAX_INT64
        )

    def add(self, offset: int, time: int, row: Row) -> None:
        _, biz_id, tags, key, value, headers, *_ = row
        self._size += put_fields(
            self._parts,
            key if key is None or type(key) is bytes else bytes_in(key),
            value if value is None or type(value) is bytes else bytes_in(value),
            NO_HEADERS
            if biz_id is None and tags is None and headers is None
            else _encoded_headers(biz_id, tags, headers),
            time - self._base_time,
            offset - self._base_offset,
        )
        self._last_offset = offset
        self._count += 1
        if time > self._max_time:
            self._max_time = time

    def batch(self) -> bytearray:
        header = new_header(
            self._base_offset,
            self._leader_epoch,
            attributes=(self._shared[0] or 0) & _KEPT_BITS,
            last_offset_delta=self._last_offset - self._base_offset,
            base_timestamp=self._base_time,
            max_timestamp=self._max_time,
            record_count=self._count,
        )
        return _with_records(header, self._shared, self._parts)


def empty_batch(base_offset: int, next_offset: int, leader_epoch: int) -> bytearray:
    """A batch in the place of offsets that have no records."""
    header = new_header(
        base_offset,
        leader_epoch,
        last_offset_delta=min(next_offset - 1 - base_offset, MAX_DELTA),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return with_header(header, b"")


def bytes_in(value: Any) -> bytes:
    """The bytes of a column, also if it was written as text."""
    return value.encode() if isinstance(value, str) else bytes(value)


def _encoded_headers(biz_id: str | None, tags: str | None, headers: str | None) -> bytes:
    if headers is None or len(headers) <= _KEPT_BYTES:
        return _kept_encoded(biz_id, tags, headers)
    return _encoded(biz_id, tags, headers)


def _encoded(biz_id: str | None, tags: str | None, headers: str | None) -> bytes:
    return join_headers([encode_header(name, value) for name, value in headers_in(biz_id, tags, headers)])


def headers_in(biz_id: str | None, tags: str | None, headers: str | None) -> list[tuple[bytes, bytes | None]]:
    """The headers that the columns of a row hold, in order."""
    pairs = [] if headers is None else _from_json(headers)
    names = {name for name, _ in pairs}
    first: list[tuple[bytes, bytes | None]] = [
        (name, text.encode())
        for name, text in ((_BIZ_ID, biz_id), (_TAGS, tags))
        if text is not None and name not in names
    ]
    return [*first, *pairs]


_kept_encoded = lru_cache(maxsize=4096)(_encoded)


def _from_json(headers: str) -> list[tuple[bytes, bytes | None]]:
    """Headers written by hand are taken as they were meant: an object for a list of pairs, a number for text. What is
    no JSON becomes one header, so that the record can still be read.
    """
    try:
        found = json.loads(headers)
        pairs = list(found.items()) if isinstance(found, dict) else [(name, value) for name, value in found]
        return [(_plain(name) or b"", _plain(value)) for name, value in pairs]
    except (ValueError, TypeError, RecursionError):
        return [(b"headers", headers.encode())]


def _plain(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return b64decode(value["base64"], validate=True)
    return json.dumps(value, ensure_ascii=False).encode()
