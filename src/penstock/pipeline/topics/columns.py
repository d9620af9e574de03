"""Records as columns: messages of the client in, Arrow batches out.

Rules:
- Work is per column over a whole list of messages; only columns that are wanted are made.
- Arrow types are exactly those that Spark expects for the column's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.topics.headers import Headers, biz_id_of, due_ms_of, tags_of

if TYPE_CHECKING:
    from confluent_kafka import Message

INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.list_(pa.field("element", pa.string()))
HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))

# The first millisecond of the year 1 and of the year 10000: what calendars, Python's and Spark's, can show.
_FIRST_MS = -62_135_596_800_000
_END_MS = 253_402_300_800_000

_first, _second = itemgetter(0), itemgetter(1)


def instants(times_ms: pa.Array) -> pa.Array:
    """Timestamps of milliseconds since 1970; what no calendar can show becomes null."""
    if len(times_ms) > times_ms.null_count:
        ends = pc.min_max(times_ms).as_py()
        if ends["min"] < _FIRST_MS or ends["max"] >= _END_MS:
            shown = pc.and_(pc.greater_equal(times_ms, _FIRST_MS), pc.less(times_ms, _END_MS))
            times_ms = pc.if_else(shown, times_ms, pa.scalar(None, pa.int64()))
    return pc.multiply(times_ms, 1000).cast(INSTANT)


def header_lists(all_headers: Iterable[Iterable[tuple[str, bytes | None]] | None]) -> pa.Array:
    """A list of headers for each record; null where a record has none."""
    ends: list[int | None] = []
    names: list[str] = []
    values: list[bytes | None] = []
    for headers in all_headers:
        # A null entry is marked where it begins.
        ends.append(len(names) if headers else None)
        for name, value in headers or ():
            names.append(name)
            values.append(value)
    offsets = pa.array([*ends, len(names)], pa.int32())
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(HEADER)
    )
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADERS)


def time_of(message: Message) -> tuple[int, int | None]:
    """What set the timestamp (-1 none is set, 0 the sender, 1 the broker), and the timestamp in milliseconds."""
    kind, time_ms = message.timestamp()
    return kind - 1, time_ms if kind else None


@lru_cache(maxsize=4)
def _counting(count: int) -> pa.Array:
    """From nought on."""
    return pa.array(range(count), pa.int64())


class Columns:
    """Messages of one partition, in order, as columns: each is made on first access."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __getitem__(self, name: str) -> pa.Array:
        made: pa.Array = getattr(self, f"_{name}")
        return made

    @property
    def _key(self) -> pa.Array:
        return pa.array([each.key() for each in self._messages], pa.binary())

    @property
    def _value(self) -> pa.Array:
        return pa.array([each.value() for each in self._messages], pa.binary())

    @property
    def _topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._messages[0].topic(), pa.string()), len(self._messages))

    @property
    def _partition(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._messages[0].partition(), pa.int32()), len(self._messages))

    @property
    def _offset(self) -> pa.Array:
        first, last, count = self._messages[0].offset(), self._messages[-1].offset(), len(self._messages)
        assert first is not None and last is not None
        if last - first == count - 1:
            # Offsets only rise: there is no gap.
            return pc.add(_counting(count), first)
        return pa.array([each.offset() for each in self._messages], pa.int64())

    @property
    def _leader_epoch(self) -> pa.Array:
        # Epochs only rise: where the first is the last, all are one.
        first, last = self._messages[0].leader_epoch(), self._messages[-1].leader_epoch()
        if first == last:
            return pa.repeat(pa.scalar(first, pa.int32()), len(self._messages))
        return pa.array([each.leader_epoch() for each in self._messages], pa.int32())

    @cached_property
    def _times(self) -> tuple[pa.Array, pa.Array]:
        """Whose time it is, as the client numbers it, and milliseconds."""
        pairs = [each.timestamp() for each in self._messages]
        times_ms = pa.array(list(map(_second, pairs)), pa.int64())
        if len(set(map(_first, pairs))) == 1:
            return pa.repeat(pa.scalar(pairs[0][0], pa.int32()), len(pairs)), times_ms
        return pa.array(list(map(_first, pairs)), pa.int32()), times_ms

    @property
    def _timestamp(self) -> pa.Array:
        kinds, times_ms = self._times
        return instants(pc.if_else(pc.not_equal(kinds, 0), times_ms, pa.scalar(None, pa.int64())))

    @property
    def _timestampType(self) -> pa.Array:
        return pc.subtract(self._times[0], pa.scalar(1, pa.int32()))

    @cached_property
    def _each_headers(self) -> list[Headers] | None:
        """Those of each message; None if no message has any."""
        found: list[Any] = [each.headers() for each in self._messages]
        return [each or () for each in found] if any(found) else None

    @property
    def _headers(self) -> pa.Array:
        found = self._each_headers
        return pa.nulls(len(self._messages), HEADERS) if found is None else header_lists(found)

    @property
    def _tags(self) -> pa.Array:
        return self._told(tags_of, TEXTS)

    @property
    def _biz_id(self) -> pa.Array:
        return self._told(biz_id_of, pa.string())

    @property
    def _due(self) -> pa.Array:
        return instants(self._told(due_ms_of, pa.int64()))

    def _told(self, tell: Callable[[Headers], object], kind: pa.DataType) -> pa.Array:
        found = self._each_headers
        if found is None:
            return pa.nulls(len(self._messages), kind)
        return pa.array([tell(each) if each else None for each in found], kind)


TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": INSTANT,
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "tags": TEXTS,
    "biz_id": pa.string(),
    "due": INSTANT,
    "leader_epoch": pa.int32(),
}
"""Every column there can be."""


def batch_of(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    """The wanted columns of messages of one partition."""
    made = Columns(messages)
    schema = pa.schema([(column, TYPES[column]) for column in columns])
    return pa.RecordBatch.from_arrays([made[column] for column in columns], schema=schema)
