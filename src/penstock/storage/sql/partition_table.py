"""The table of a log: inserting batches, reading them by offset, looking for times, deleting. Two kinds:

- `RecordTable`: a row a record, in columns that people and other programs can read and write.
- `BatchTable`, of a companion log: a row a batch as it is, because its readers address bytes inside of it.

Everything here runs inside a transaction, in a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.config.topic import TopicConfig
from penstock.errors import ApiError
from penstock.records.batch import CONTROL_BIT, BatchHeader, read_header
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect
from penstock.storage.contract import Piece, TimedOffset
from penstock.storage.epochs import EpochHistory, EpochStart
from penstock.storage.sql.record_rows import COLUMNS, EpochAt, batches_of, empty_batch, rows_of
from penstock.storage.sql.schema import Columns, batch_columns, record_columns
from penstock.storage.sql.tail_cache import WrittenBatch
from penstock.storage.time_lookup import first_at, max_of

_ROWS_A_READ = 4096
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


class PartitionTable(ABC):
    """One table."""

    indexes: tuple[str, ...] = ()

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self._quoted = dialect.quoted(name)

    @abstractmethod
    def columns(self, dialect: Dialect) -> Columns: ...

    def is_compacted(self, config: TopicConfig) -> bool:
        """Whether single rows are removed from the middle."""
        return False

    @abstractmethod
    def prepared(self, batches: Sequence[WrittenBatch]) -> Sequence[Sequence[Any]]:
        """The rows of batches, ready to be inserted; RefusedBatchError if there are none for one of them."""

    @abstractmethod
    def insert(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None: ...

    @abstractmethod
    def read(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int, epochs: Sequence[EpochStart]
    ) -> FoundBatches:
        """Whole batches from `offset` on, below `end_offset`: about `max_bytes` of them, but at least one."""

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

    def __init__(self, name: str, dialect: Dialect) -> None:
        super().__init__(name, dialect)
        self._row_bytes = _FIRST_ROW_BYTES
        """The mean of the rows that were read last."""

    def columns(self, dialect: Dialect) -> Columns:
        return record_columns(dialect)

    def is_compacted(self, config: TopicConfig) -> bool:
        return "compact" in config.cleanup_policy

    def prepared(self, batches: Sequence[WrittenBatch]) -> Sequence[Sequence[Any]]:
        rows: list[Sequence[Any]] = []
        for written in batches:
            try:
                rows += rows_of(memoryview(written.batch), written.header, written.append_ms)
            except ApiError as error:
                raise RefusedBatchError(written.header, error) from error
        return rows

    def insert(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        connection.insert(self.name, COLUMNS, rows)

    def read(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int, epochs: Sequence[EpochStart]
    ) -> FoundBatches:
        next_offset, is_all = self._stop(connection, offset, max_bytes, end_offset)
        rows = self._between(connection, offset, next_offset)
        made = [bytes(batch) for batch in batches_of(rows, EpochAt(epochs))]
        reached = read_header(made[-1]).next_offset if made else offset
        if is_all and reached < end_offset:
            # Offsets without records: whoever reads them must get on.
            made.append(bytes(empty_batch(reached, end_offset, EpochAt(epochs)(reached))))
        return FoundBatches(made, next_offset)

    def rows(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[Sequence[Sequence[Any]], int]:
        next_offset, _ = self._stop(connection, offset, max_bytes, end_offset)
        return self._between(connection, offset, next_offset), next_offset

    def _between(self, connection: Connection, offset: int, next_offset: int) -> list[tuple[Any, ...]]:
        return connection.execute(
            f"SELECT {_COLUMN_LIST} FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id", offset, next_offset
        )

    def _stop(self, connection: Connection, offset: int, max_bytes: int, end_offset: int) -> tuple[int, bool]:
        """Where to stop, to have about `max_bytes`, and whether nothing comes after that.

        How large rows are is asked first: nobody knows how much a number of them would be. As many as it should be by
        the size of those that were read last are added up in the database; if that is much more, each is looked at.
        """
        expected = min(_ROWS_A_READ, max(1, max_bytes // self._row_bytes))
        some = f"SELECT id, {_ROW_BYTES} AS size FROM {self._quoted} WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"
        ((count, last, total),) = connection.execute(
            f"SELECT COUNT(*), MAX(id), SUM(size) FROM ({some}) chosen", offset, end_offset, expected
        )
        if count == 0:
            return end_offset, True
        self._row_bytes = max(1, int(total) // count)
        if count == 1 or total <= 2 * max_bytes:
            return (end_offset, True) if count < expected else (last, False)
        stop, total = offset, 0
        for row_id, size in connection.execute(some, offset, end_offset, count):
            total += size
            if stop > offset and total > max_bytes:
                return stop, False
            stop = row_id
        return last, False  # some have gone meanwhile

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

    def columns(self, dialect: Dialect) -> Columns:
        return batch_columns(dialect)

    def prepared(self, batches: Sequence[WrittenBatch]) -> Sequence[Sequence[Any]]:
        return [
            (header.base_offset + 1, header.next_offset + 1, header.base_timestamp, batch)
            for header, batch, *_ in batches
        ]

    def insert(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        connection.insert(self.name, _BATCH_COLUMNS, rows)

    def read(
        self, connection: Connection, offset: int, max_bytes: int, end_offset: int, epochs: Sequence[EpochStart]
    ) -> FoundBatches:
        rows, next_offset = self.rows(connection, offset, max_bytes, end_offset)
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
