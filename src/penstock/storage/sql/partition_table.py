"""The table of a log: inserting batches, reading them by offset, looking for times, deleting. Two kinds:

- `RecordTable`: a row a record, in columns that people and other programs can read and write.
- `BatchTable`, of a companion log: a row a batch as it is, because its readers address bytes inside of it.

Everything here runs inside a transaction, in a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.config.topic import TopicConfig
from penstock.errors import ApiError
from penstock.records.batch import CONTROL_BIT, BatchHeader, read_header
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect
from penstock.storage.contract import Piece, TimedOffset
from penstock.storage.epochs import EpochHistory, EpochStart
from penstock.storage.sql.record_rows import (
    COLUMNS,
    EpochAt,
    PlainRows,
    batches_of,
    empty_batch,
    may_be_plain,
    plain_batches,
    rows_of,
)
from penstock.storage.sql.schema import Columns, batch_columns, record_columns
from penstock.storage.sql.tail_cache import WrittenBatch
from penstock.storage.time_lookup import first_at, max_of

_ROWS_A_READ = 8192
_ROWS_A_DELETE = 5000
_ROW_OVERHEAD = 24
"""About what a record has beside its key, value and headers."""
_ROW_BYTES = (
    "COALESCE(LENGTH(body), 0) + COALESCE(LENGTH(msg_key), 0) + COALESCE(LENGTH(headers), 0)"
    f" + COALESCE(LENGTH(tags), 0) + {_ROW_OVERHEAD}"
)
_FIRST_ROW_BYTES = 4096
"""How large rows are taken for before any was read."""
_COLUMN_LIST = ", ".join(COLUMNS)
_SHARED_COLUMNS = ("attributes", "producer_id", "producer_epoch")
_SUMMARY = ", ".join(
    [
        f"COUNT(*), MIN(id), SUM({_ROW_BYTES})",
        "COUNT(biz_id) + COUNT(tags) + COUNT(headers), COUNT(msg_key), COUNT(send_time)",
        *(f"COUNT({column}), MIN({column}), MAX({column})" for column in _SHARED_COLUMNS),
    ]
)
_BATCH_COLUMNS = ("id", "next_id", "due", "batch")
_BATCHES_A_LOOK = 64
_PIECES_A_QUERY = 500


class RefusedBatchError(Exception):
    """One of the batches cannot be stored; the others could."""

    def __init__(self, header: BatchHeader, reason: ApiError) -> None:
        super().__init__(str(reason))
        self.header = header
        self.reason = reason


class FoundBatches(NamedTuple):
    """What a read found."""

    batches: list[bytes]
    next_offset: int
    """Nothing more lies below."""


class SegmentSpan(NamedTuple):
    """Offsets of a segment, and how new its records are at most."""

    base_offset: int
    next_offset: int
    max_ms: int


OnSize = Callable[[int], None]
"""Called in a thread, with the offset behind a range."""


class WantedRange(NamedTuple):
    """Whole batches from `offset` on, below `end_offset`: about `max_bytes` of them, but at least one."""

    offset: int
    max_bytes: int
    end_offset: int
    epochs: Sequence[EpochStart]


class Summary(NamedTuple):
    """What the rows of a stretch of a table have in common."""

    next_offset: int
    """Behind the stretch."""
    rows: int
    size: int
    is_plain: bool
    """Each offset has a row, with a time and without headers."""
    has_keys: bool
    shared: tuple[int, int, int] | None
    """The attributes, producer id and producer epoch, if all rows have the same."""

    def plain(self, epochs: Sequence[EpochStart]) -> PlainRows | None:
        """How the stretch is read with few columns; None if all of them are needed."""
        if not self.is_plain or self.shared is None or not may_be_plain(self.shared[0]):
            return None
        base_offset = self.next_offset - self.rows
        epoch_at = EpochAt(epochs)
        leader_epoch = epoch_at(base_offset)
        if epoch_at.until is not None and epoch_at.until < self.next_offset:
            return None
        return PlainRows(base_offset, leader_epoch, self.shared, has_keys=self.has_keys)


class PartitionTable(ABC):
    """One table."""

    indexes: tuple[str, ...] = ()
    inserted: tuple[str, ...]
    """The columns of a row."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self._dialect = dialect
        self._quoted = dialect.quoted(name)

    @abstractmethod
    def columns(self, dialect: Dialect) -> Columns: ...

    def is_compacted(self, config: TopicConfig) -> bool:
        """Whether single rows are removed from the middle."""
        return False

    @abstractmethod
    def rows_of(self, written: WrittenBatch) -> Sequence[Sequence[Any]]:
        """The rows of a batch; RefusedBatchError if it has none."""

    def encoded(self, written: WrittenBatch) -> Sequence[Any]:
        """The rows of a batch as `insert_encoded` takes them."""
        return self._dialect.encoded_rows(self.rows_of(written))

    def insert(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        connection.insert(self.name, self.inserted, rows)

    def insert_encoded(self, connection: Connection, rows: Sequence[Any]) -> None:
        connection.insert_encoded(self.name, self.inserted, rows)

    @abstractmethod
    def read(self, connection: Connection, wanted: WantedRange, on_size: OnSize | None = None) -> FoundBatches:
        """Reads batches. With `on_size`, all that this transaction reads is of one moment; it is told where the range
        ends before its rows are read, if that is known by then.
        """

    @abstractmethod
    def rows(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[Sequence[Sequence[Any]], int]:
        """Rows as they are stored, as `insert` takes them, from `offset` on: about `max_bytes` of them, but at least
        one; and the offset that they reach.
        """

    @abstractmethod
    def find_time(
        self, connection: Connection, stretch: SegmentSpan, timestamp_ms: int, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        """The first record of a stretch whose timestamp is not below `timestamp_ms`."""

    @abstractmethod
    def find_max(
        self, connection: Connection, stretch: SegmentSpan, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        """The first record of a stretch that has the largest timestamp in it."""

    @abstractmethod
    def end_below(self, connection: Connection, end_offset: int) -> int | None:
        """Where the last row ends that lies below an offset; None if there is none."""

    @abstractmethod
    def end_before(self, connection: Connection, row_id: int) -> int:
        """Where the last row ends that has a lower id; 0 if there is none."""

    @abstractmethod
    def added(self, connection: Connection, start_offset: int, end_offset: int) -> tuple[int, int | None]:
        """How many bytes lie between two offsets, and the largest timestamp."""

    @abstractmethod
    def last_end(self, connection: Connection) -> int:
        """The offset behind the last row; 0 if there is none."""

    def count_below(self, connection: Connection, start_offset: int, limit: int) -> int:
        """How many rows begin below an offset; `limit` if there are more."""
        some = f"SELECT id FROM {self._quoted} WHERE id <= ? ORDER BY id LIMIT {limit}"
        ((count,),) = connection.execute(f"SELECT COUNT(*) FROM ({some}) chosen", start_offset)
        return int(count)

    @abstractmethod
    def delete_some(self, connection: Connection, start_offset: int) -> bool:
        """Deletes rows that lie wholly below the start, as many as one transaction should; whether more are left."""

    def delete_from(self, connection: Connection, end_offset: int) -> None:
        """Deletes rows at and behind an offset."""
        connection.change(f"DELETE FROM {self._quoted} WHERE id > ?", end_offset)


class RecordTable(PartitionTable):
    """A row a record."""

    indexes = ("biz_id",)
    inserted = COLUMNS

    def __init__(self, name: str, dialect: Dialect) -> None:
        super().__init__(name, dialect)
        self._row_bytes = _FIRST_ROW_BYTES
        """The mean of the rows that were read last."""

    def columns(self, dialect: Dialect) -> Columns:
        return record_columns(dialect)

    def is_compacted(self, config: TopicConfig) -> bool:
        return "compact" in config.cleanup_policy

    def rows_of(self, written: WrittenBatch) -> Sequence[Sequence[Any]]:
        try:
            return rows_of(memoryview(written.batch), written.header, written.append_ms)
        except ApiError as error:
            raise RefusedBatchError(written.header, error) from error

    def read(self, connection: Connection, wanted: WantedRange, on_size: OnSize | None = None) -> FoundBatches:
        offset, max_bytes, end_offset, epochs = wanted
        summary = self._summary(connection, offset, max_bytes, end_offset)
        next_offset = end_offset if summary is None else summary.next_offset
        plain = None
        if summary is not None and on_size is not None:
            on_size(next_offset)
            plain = summary.plain(epochs)
        if plain is not None:
            rows = connection.execute(
                f"SELECT {plain.columns} FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id", offset, next_offset
            )
            made = [bytes(batch) for batch in plain_batches(plain, rows)]
        else:
            rows = [] if summary is None else self._between(connection, offset, next_offset)
            made = [bytes(batch) for batch in batches_of(rows, EpochAt(epochs))]
        reached = read_header(made[-1]).next_offset if made else offset
        if next_offset == end_offset and reached < end_offset:
            # Offsets without records: a reader must get past them.
            made.append(bytes(empty_batch(reached, end_offset, EpochAt(epochs)(reached))))
        return FoundBatches(made, next_offset)

    def rows(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[Sequence[Sequence[Any]], int]:
        summary = self._summary(connection, offset, max_bytes, end_offset)
        if summary is None:
            return [], end_offset
        return self._between(connection, offset, summary.next_offset), summary.next_offset

    def _between(self, connection: Connection, offset: int, next_offset: int) -> list[tuple[Any, ...]]:
        return connection.execute(
            f"SELECT {_COLUMN_LIST} FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id", offset, next_offset
        )

    def _summary(self, connection: Connection, offset: int, max_bytes: int, end_offset: int) -> Summary | None:
        """What lies from `offset` on, of about `max_bytes` and at least one row; None if nothing does.

        The database is asked for sizes first, because the number of rows says little. As many as should fit, by the
        size of those that were read last, are added up; if that is much more, each row is looked at.
        """
        expected = min(_ROWS_A_READ, max(1, max_bytes // self._row_bytes))
        next_offset = min(end_offset, offset + expected)
        found = self._added_up(connection, offset, next_offset)
        if next_offset < end_offset and (found is None or 2 * found.rows < expected):
            # Compaction has removed most of these offsets.
            next_offset = self._behind_rows(connection, offset, end_offset, expected)
            found = self._added_up(connection, offset, next_offset)
        if found is None:
            return None
        self._row_bytes = max(1, found.size // found.rows)
        if found.rows > 1 and found.size > 2 * max_bytes:
            return self._added_up(connection, offset, self._stop(connection, offset, max_bytes, next_offset))
        return found

    def _added_up(self, connection: Connection, offset: int, next_offset: int) -> Summary | None:
        ((count, first_id, size, with_headers, with_key, with_time, *shared),) = connection.execute(
            f"SELECT {_SUMMARY} FROM {self._quoted} WHERE id > ? AND id <= ?", offset, next_offset
        )
        if count == 0:
            return None
        are_shared = all(
            number == count and least == most for number, least, most in zip(*[iter(shared)] * 3, strict=True)
        )
        return Summary(
            next_offset,
            count,
            int(size),
            is_plain=first_id == offset + 1
            and count == next_offset - offset
            and with_time == count
            and not with_headers,
            has_keys=bool(with_key),
            shared=tuple(shared[1::3]) if are_shared else None,
        )

    def _behind_rows(self, connection: Connection, offset: int, end_offset: int, count: int) -> int:
        """The offset behind so many rows; the end if there are fewer."""
        found = connection.execute(
            f"SELECT id FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id LIMIT 1 OFFSET ?",
            offset,
            end_offset,
            count - 1,
        )
        return int(found[0][0]) if found else end_offset

    def _stop(self, connection: Connection, offset: int, max_bytes: int, next_offset: int) -> int:
        """The offset behind the rows that have `max_bytes`, or behind the first one."""
        stop, total = offset, 0
        for row_id, size in connection.execute(
            f"SELECT id, {_ROW_BYTES} FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id", offset, next_offset
        ):
            total += size
            if stop > offset and total > max_bytes:
                return stop
            stop = row_id
        return stop

    def find_time(
        self, connection: Connection, stretch: SegmentSpan, timestamp_ms: int, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        found = connection.execute(
            f"SELECT id, send_time FROM {self._quoted}"
            f" WHERE id > ? AND id <= ? AND send_time >= ? AND attributes & {CONTROL_BIT} = 0 ORDER BY id LIMIT 1",
            max(stretch.base_offset, start_offset),
            stretch.next_offset,
            timestamp_ms,
        )
        return _timed(found, epochs)

    def find_max(
        self, connection: Connection, stretch: SegmentSpan, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        found = connection.execute(
            f"SELECT id, send_time FROM {self._quoted}"
            f" WHERE id > ? AND id <= ? AND send_time >= 0 AND attributes & {CONTROL_BIT} = 0"
            " ORDER BY send_time DESC, id LIMIT 1",
            max(stretch.base_offset, start_offset),
            stretch.next_offset,
        )
        return _timed(found, epochs)

    def end_below(self, connection: Connection, end_offset: int) -> int | None:
        ((last,),) = connection.execute(f"SELECT MAX(id) FROM {self._quoted} WHERE id <= ?", end_offset)
        return None if last is None else int(last)

    def end_before(self, connection: Connection, row_id: int) -> int:
        return self.end_below(connection, row_id - 1) or 0

    def added(self, connection: Connection, start_offset: int, end_offset: int) -> tuple[int, int | None]:
        ((size, newest),) = connection.execute(
            "SELECT COALESCE(SUM(COALESCE(LENGTH(body), 0) + COALESCE(LENGTH(msg_key), 0)), 0),"
            f" MAX(COALESCE(send_time, receive_time)) FROM {self._quoted} WHERE id > ? AND id <= ?",
            start_offset,
            end_offset,
        )
        return int(size), newest

    def last_end(self, connection: Connection) -> int:
        ((last,),) = connection.execute(f"SELECT MAX(id) FROM {self._quoted}")
        return last or 0

    def delete_offsets(self, connection: Connection, offsets: Sequence[int]) -> None:
        """Deletes records, as many as one transaction should at most."""
        marks = ", ".join("?" * len(offsets))
        connection.change(f"DELETE FROM {self._quoted} WHERE id IN ({marks})", *(offset + 1 for offset in offsets))

    def delete_some(self, connection: Connection, start_offset: int) -> bool:
        return _delete_some(connection, self._quoted, "id", start_offset)


class BatchTable(PartitionTable):
    """A row a batch."""

    inserted = _BATCH_COLUMNS

    def columns(self, dialect: Dialect) -> Columns:
        return batch_columns(dialect)

    def rows_of(self, written: WrittenBatch) -> Sequence[Sequence[Any]]:
        header = written.header
        return [(header.base_offset + 1, header.next_offset + 1, header.base_timestamp, written.batch)]

    def read(self, connection: Connection, wanted: WantedRange, on_size: OnSize | None = None) -> FoundBatches:
        rows, next_offset = self.rows(connection, wanted.offset, wanted.max_bytes, wanted.end_offset)
        return FoundBatches([bytes(batch) for *_, batch in rows], next_offset)

    def rows(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[Sequence[Sequence[Any]], int]:
        ((first,),) = connection.execute(f"SELECT MAX(id) FROM {self._quoted} WHERE id <= ?", offset + 1)
        sizes = connection.execute(
            f"SELECT id, LENGTH(batch) FROM {self._quoted}"
            " WHERE id >= ? AND next_id > ? AND next_id <= ? ORDER BY id LIMIT ?",
            first or 0,
            offset + 1,
            end_offset + 1,
            _ROWS_A_READ,
        )
        chosen, total = 0, 0
        for _, size in sizes:
            total += size
            if chosen and total > max_bytes:
                break
            chosen += 1
        if not chosen:
            return [], end_offset
        rows = connection.execute(
            f"SELECT {', '.join(_BATCH_COLUMNS)} FROM {self._quoted} WHERE id >= ? AND id <= ? ORDER BY id",
            sizes[0][0],
            sizes[chosen - 1][0],
        )
        return rows, rows[-1][1] - 1 if rows else end_offset

    def find_time(
        self, connection: Connection, stretch: SegmentSpan, timestamp_ms: int, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        for batch, header in self._batches(connection, stretch):
            if header.max_timestamp >= timestamp_ms:
                found = first_at(memoryview(batch), header, timestamp_ms, start_offset)
                if found is not None:
                    return found
        return None

    def find_max(
        self, connection: Connection, stretch: SegmentSpan, start_offset: int, epochs: EpochHistory
    ) -> TimedOffset | None:
        largest: TimedOffset | None = None
        for batch, header in self._batches(connection, stretch):
            if largest is None or header.max_timestamp > largest.timestamp_ms:
                found = max_of(memoryview(batch), header, start_offset)
                if found is not None and (largest is None or found.timestamp_ms > largest.timestamp_ms):
                    largest = found
        return largest

    def _batches(self, connection: Connection, stretch: SegmentSpan) -> Iterator[tuple[bytes, BatchHeader]]:
        last = stretch.base_offset
        while True:
            rows = connection.execute(
                f"SELECT id, batch FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
                last,
                stretch.next_offset,
                _BATCHES_A_LOOK,
            )
            for _, batch in rows:
                yield batch, read_header(batch)
            if len(rows) < _BATCHES_A_LOOK:
                return
            last = rows[-1][0]

    def end_below(self, connection: Connection, end_offset: int) -> int | None:
        # Batches do not overlap: if the last one that begins below reaches further, the one before it does not.
        rows = connection.execute(
            f"SELECT next_id FROM {self._quoted} WHERE id <= ? ORDER BY id DESC LIMIT 2", end_offset
        )
        return next((next_id - 1 for (next_id,) in rows if next_id - 1 <= end_offset), None)

    def end_before(self, connection: Connection, row_id: int) -> int:
        found = connection.execute(f"SELECT next_id FROM {self._quoted} WHERE id < ? ORDER BY id DESC LIMIT 1", row_id)
        return found[0][0] - 1 if found else 0

    def added(self, connection: Connection, start_offset: int, end_offset: int) -> tuple[int, int | None]:
        ((size, newest),) = connection.execute(
            f"SELECT COALESCE(SUM(LENGTH(batch)), 0), MAX(due) FROM {self._quoted} WHERE id > ? AND id <= ?",
            start_offset,
            end_offset,
        )
        return int(size), newest

    def last_end(self, connection: Connection) -> int:
        ((last,),) = connection.execute(f"SELECT MAX(next_id) FROM {self._quoted}")
        return last - 1 if last else 0

    def pieces(self, connection: Connection, wanted: Sequence[Piece]) -> list[bytes]:
        bases = sorted({piece.base_offset + 1 for piece in wanted})
        found: dict[int, bytes] = {}
        for at in range(0, len(bases), _PIECES_A_QUERY):
            some = bases[at : at + _PIECES_A_QUERY]
            marks = ", ".join("?" * len(some))
            found.update(connection.execute(f"SELECT id, batch FROM {self._quoted} WHERE id IN ({marks})", *some))
        return [
            bytes(found.get(base_offset + 1, b""))[position : position + size] for base_offset, position, size in wanted
        ]

    def delete_some(self, connection: Connection, start_offset: int) -> bool:
        return _delete_some(connection, self._quoted, "next_id - 1", start_offset)


def _delete_some(connection: Connection, quoted: str, end: str, start_offset: int) -> bool:
    ((last, count),) = connection.execute(
        f"SELECT MAX(id), COUNT(*) FROM (SELECT id FROM {quoted} WHERE id <= ? AND {end} <= ?"
        f" ORDER BY id LIMIT {_ROWS_A_DELETE}) chosen",
        start_offset,
        start_offset,
    )
    if count:
        connection.change(f"DELETE FROM {quoted} WHERE id <= ? AND {end} <= ?", last, start_offset)
    return bool(count == _ROWS_A_DELETE)


def _timed(found: Sequence[tuple[Any, ...]], epochs: EpochHistory) -> TimedOffset | None:
    if not found:
        return None
    offset = found[0][0] - 1
    return TimedOffset(offset, found[0][1], epochs.epoch_at(offset))
