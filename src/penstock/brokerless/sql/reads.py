"""Reading a partition: rows as messages, without what a reader of committed records must not see.

Everything here runs inside a transaction that only reads, in a thread; each statement may see a later state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.brokerless.sql.appends import PartitionRef, QueueMissingError
from penstock.brokerless.store import ReadPage
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from penstock.sdk.ports import Received
from penstock.sql.database import Connection
from penstock.storage.producers import NOT_OPEN
from penstock.storage.snapshots import read_entry
from penstock.storage.sql.record_rows import bytes_in, headers_in

_COLUMNS = "id, biz_id, tags, msg_key, body, headers, send_time, receive_time, attributes, producer_id"
_ROW_BYTES = 4096
"""How large rows are taken for until some were read."""
MAX_PAGE_BYTES = 8 << 20
"""Approximate: a read requests fewer rows if they are large."""


class Bounds(NamedTuple):
    start_offset: int
    end_offset: int


def bounds(connection: Connection, ref: PartitionRef) -> Bounds:
    found = connection.execute(
        "SELECT start_offset, next_id FROM queue WHERE table_name = ? AND id = ?", ref.table, ref.queue_id
    )
    if not found:
        raise QueueMissingError(str(ref.topic_partition))
    return Bounds(found[0][0], found[0][1] - 1)


def ends(connection: Connection, refs: Sequence[PartitionRef]) -> Mapping[str, int]:
    """End offsets by table, of those that are there."""
    marks = ", ".join("?" * len(refs))
    rows = connection.execute(
        f"SELECT table_name, next_id FROM queue WHERE table_name IN ({marks})", *(ref.table for ref in refs)
    )
    return {table: next_id - 1 for table, next_id in rows}


class Reader:
    """Reads one partition; remembers how large its rows are."""

    def __init__(self) -> None:
        self._row_bytes = _ROW_BYTES

    def read(self, connection: Connection, ref: PartitionRef, offset: int, max_count: int) -> ReadPage:
        """Raises `QueueMissingError`."""
        limit = max(1, min(max_count, MAX_PAGE_BYTES // self._row_bytes))
        rows = self._rows(connection, ref, offset, limit)
        if rows:
            next_offset = int(rows[-1][0])
        else:
            # Ids without rows must not hold a reader up. Read the end first, then the rows before it.
            start_offset, end_offset = bounds(connection, ref)
            offset = max(offset, start_offset)
            rows = self._rows(connection, ref, offset, limit)
            next_offset = int(rows[-1][0]) if rows else max(offset, end_offset)
        if any((row[8] or 0) & (TRANSACTIONAL_BIT | CONTROL_BIT) for row in rows):
            rows, next_offset = _committed(connection, ref, rows, next_offset)
        return ReadPage([_received(ref, row) for row in rows], next_offset)

    def _rows(self, connection: Connection, ref: PartitionRef, offset: int, limit: int) -> list[tuple[Any, ...]]:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM {connection.dialect.quoted(ref.table)} WHERE id > ?"
            " AND id > (SELECT start_offset FROM queue WHERE table_name = ?) ORDER BY id LIMIT ?",
            offset,
            ref.table,
            limit,
        )
        if rows:
            size = sum(len(row[4] or b"") + len(row[3] or b"") + len(row[5] or "") for row in rows)
            self._row_bytes = max(64, size // len(rows))
        return rows


def _committed(
    connection: Connection, ref: PartitionRef, rows: list[tuple[Any, ...]], next_offset: int
) -> tuple[list[tuple[Any, ...]], int]:
    """Rows up to the first open transaction, without control rows and those of aborted transactions. Reads the state of
    transactions after the rows, so that it has the outcome of every transaction that has ended since.
    """
    states = connection.execute("SELECT state FROM queue_producer WHERE queue_id = ?", ref.queue_id)
    open_since = [read_entry(bytes(state)).open_since for (state,) in states]
    stable = min((since for since in open_since if since != NOT_OPEN), default=next_offset)
    aborted = connection.execute(
        "SELECT producer_id, first_offset, last_offset FROM queue_aborted WHERE queue_id = ? AND last_offset >= ?",
        ref.queue_id,
        rows[0][0] - 1,
    )
    kept = [
        row
        for row in rows
        if row[0] - 1 < stable
        and not (row[8] or 0) & CONTROL_BIT
        and not (
            (row[8] or 0) & TRANSACTIONAL_BIT
            and any(row[9] == producer and first <= row[0] - 1 <= last for producer, first, last in aborted)
        )
    ]
    return kept, min(next_offset, stable)


def _received(ref: PartitionRef, row: tuple[Any, ...]) -> Received:
    row_id, biz_id, tags, key, body, headers, send_time, receive_time, _, _ = row
    has_headers = headers is not None or biz_id is not None or tags is not None
    return Received(
        ref.topic_partition.topic,
        ref.topic_partition.partition,
        row_id - 1,
        body if body is None or type(body) is bytes else bytes_in(body),
        key if key is None or type(key) is bytes else bytes_in(key),
        tuple((name.decode("utf-8", "replace"), value) for name, value in headers_in(biz_id, tags, headers))
        if has_headers
        else (),
        send_time if send_time is not None else receive_time,
    )
