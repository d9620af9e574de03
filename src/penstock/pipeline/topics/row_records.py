"""Rows as records to send: which columns a frame may have, and what each row becomes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import StructType

from penstock.pipeline.failure import OptionError, PipelineError
from penstock.pipeline.topics.headers import written
from penstock.pipeline.topics.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_HEADERS = "array<struct<key:string,value:binary>>"
_ALLOWED = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
    "tags": ("array<string>",),
    "biz_id": ("string",),
    "due": ("timestamp",),
}
_CHOSEN_BY_KEY = -1
_NOW = 0
_SUM_BITS = 64


class OutgoingRecord(NamedTuple):
    """One record to send."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    time_ms: int
    headers: list[tuple[str, str | bytes | None]]


class SendCount:
    """How many rows there were and the sum of their checksums, whatever their order."""

    def __init__(self, rows: int = 0, total: int = 0) -> None:
        self.rows = rows
        self.total = total

    def counting(self, rows: Iterable[OutgoingRecord]) -> Iterator[OutgoingRecord]:
        """The rows, counted as they are taken."""
        for row in rows:
            self.rows += 1
            crc = zlib.crc32(row.value or b"", zlib.crc32(row.key or b"", zlib.crc32(row.topic.encode())))
            self.total = (self.total + crc) % (1 << _SUM_BITS)
            yield row

    @classmethod
    def read(cls, written: str) -> SendCount:
        said = json.loads(written)
        return cls(said["rows"], said["sum"])

    def written(self) -> str:
        return json.dumps({"rows": self.rows, "sum": self.total})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SendCount) and (self.rows, self.total) == (other.rows, other.total)


def columns_to_write(schema: StructType, writing: WriteOptions) -> tuple[str, ...]:
    """The columns of a frame, if they can be written."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in _ALLOWED:
            raise OptionError(f"column {name} cannot be written; those that can are {', '.join(_ALLOWED)}")
        if kind not in _ALLOWED[name]:
            raise OptionError(f"column {name} is {kind}, allowed is {' or '.join(_ALLOWED[name])}")
    if "value" not in found:
        raise OptionError("there is no column value")
    if "topic" not in found and writing.topic is None:
        raise OptionError("there is neither an option topic nor a column topic")
    return tuple(found)


def rows_of(batch: pa.RecordBatch, columns: Sequence[str], topic: str | None) -> Iterator[OutgoingRecord]:
    """The records of a batch; `topic` is that of the option, which goes before the column."""
    lists = {name: _listed(batch.column(index)) for index, name in enumerate(columns)}
    nothing = [None] * batch.num_rows
    topics = [topic] * batch.num_rows if topic is not None else lists["topic"]
    for name, value, key, partition, time_ms, headers, tags, biz_id, due_ms in zip(
        topics,
        *(lists.get(column, nothing) for column in ("value", "key", "partition", "timestamp", "headers")),
        *(lists.get(column, nothing) for column in ("tags", "biz_id", "due")),
        strict=True,
    ):
        if name is None:
            raise PipelineError("a row has no topic, and there is no option topic")
        pairs = [(header["key"], header["value"]) for header in headers or ()]
        yield OutgoingRecord(
            name,
            value.encode() if isinstance(value, str) else value,
            key.encode() if isinstance(key, str) else key,
            _CHOSEN_BY_KEY if partition is None else partition,
            _NOW if time_ms is None else time_ms,
            pairs + written(tags, biz_id, due_ms),
        )


def _listed(column: pa.Array) -> list[Any]:
    """Python values; moments as milliseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        micros: list[int | None] = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if each is None else each // 1000 for each in micros]
    values: list[Any] = column.to_pylist()
    return values
