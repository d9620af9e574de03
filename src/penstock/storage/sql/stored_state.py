"""What the engine's own tables say of a log: its row in `queue`, segments, epochs, producers, aborted transactions.

Everything here runs inside a transaction, in a thread. A transaction that reads or changes a log locks its row in
`queue` first: then no other client appends to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import NamedTuple

from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.sql.database import Connection
from penstock.storage.aborted import AbortedEntry
from penstock.storage.compaction import CompactionState
from penstock.storage.epochs import EpochStart
from penstock.storage.producers import ProducerEntry
from penstock.storage.snapshots import read_entry
from penstock.storage.sql.schema import OWN_DETAILS
from penstock.storage.sql.segments import SegmentRow

NO_EPOCH = -1
_COMPACTION = "compaction"
_SEGMENT = ("queue_id", "base_offset", "next_offset", "bytes", "first_time", "max_time")
_EPOCH = ("queue_id", "epoch", "start_offset")
_PRODUCER = ("queue_id", "producer_id", "state")
_ABORTED = ("queue_id", "producer_id", "first_offset", "last_offset", "stable_offset")
_STATE = ("queue_id", "name", "value")


class LogFencedError(StorageError):
    """Another broker leads the partition."""


class MovedError(StorageError):
    """The log does not end where it was believed to."""


class QueueRow(NamedTuple):
    """The row of a log in `queue`."""

    id: int
    table: str
    next_id: int
    start_offset: int
    leader_epoch: int
    token: str

    @property
    def end_offset(self) -> int:
        return self.next_id - 1


class StoredState(NamedTuple):
    """All that is stored of a log but its records."""

    row: QueueRow
    segments: list[SegmentRow]
    epochs: list[EpochStart]
    producers: dict[int, ProducerEntry]
    """Least recently seen first."""
    aborted: list[AbortedEntry]
    compaction: CompactionState


class StateChanges(NamedTuple):
    """What goes with records into the engine's own tables."""

    segments: Sequence[SegmentRow] = ()
    epochs: Sequence[EpochStart] = ()
    producers: Sequence[tuple[int, bytes]] = ()
    aborted: Sequence[AbortedEntry] = ()


def queue_id_of(at: TopicPartition, topic_id: TopicId) -> int:
    """The same for all brokers, so that two of them never make two rows for one partition."""
    digest = sha256(b"%b %b %d" % (topic_id.bytes, at.topic.encode(), at.partition)).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def find_row(connection: Connection, queue_id: int) -> QueueRow | None:
    found = connection.execute(
        "SELECT id, table_name, next_id, start_offset, leader_epoch, token FROM queue WHERE id = ?", queue_id
    )
    return QueueRow(*found[0]) if found else None


def lock_row(connection: Connection, row: QueueRow) -> QueueRow:
    """The row as it is now, and as it stays until the end of the transaction."""
    found = connection.execute(
        "SELECT id, table_name, next_id, start_offset, leader_epoch, token FROM queue"
        f" WHERE table_name = ?{connection.dialect.for_update}",
        row.table,
    )
    if not found or found[0][0] != row.id:
        raise StorageError(f'the row of "{row.table}" is missing in the table "queue": the log was deleted')
    return QueueRow(*found[0])


def insert_row(connection: Connection, queue_id: int, table: str, at: TopicPartition, topic_id: TopicId) -> QueueRow:
    """A row for a new log; Duplicate if the table is another log's."""
    columns = (
        "id",
        "topic",
        "topic_id",
        "partition_index",
        "table_name",
        "next_id",
        "start_offset",
        "leader_epoch",
        "token",
    )
    values = (queue_id, at.topic, str(topic_id), at.partition, table, 1, 0, NO_EPOCH, "")
    connection.insert("queue", columns, [values])
    return QueueRow(queue_id, table, 1, 0, NO_EPOCH, "")


def delete_row(connection: Connection, queue_id: int) -> None:
    """Removes all that is said of a log."""
    for table in OWN_DETAILS:
        connection.change(f"DELETE FROM {table} WHERE queue_id = ?", queue_id)
    connection.change("DELETE FROM queue WHERE id = ?", queue_id)


def delete_row_of_empty(connection: Connection, queue_id: int) -> None:
    """The same, unless something was appended."""
    rows = connection.execute(f"SELECT next_id FROM queue WHERE id = ?{connection.dialect.for_update}", queue_id)
    if rows and rows[0][0] == 1:
        delete_row(connection, queue_id)


def move_end(
    connection: Connection, row: QueueRow, *, next_id: int, expected_id: int, leader_epoch: int, token: str
) -> None:
    """Gives the log another end, and locks its row; LogFencedError or MovedError if it is not the caller's to give.

    If the connection defers, the end of the transaction fails instead, with NullRefused: see `check_end`.
    """
    if connection.is_deferred:
        connection.change(
            # MySQL assigns from left to right: the condition sees the row as it was.
            "UPDATE queue SET next_id = CASE WHEN id = ? AND leader_epoch <= ? AND next_id = ? THEN ? END,"
            " token = ?, leader_epoch = ? WHERE table_name = ?",
            row.id,
            leader_epoch,
            expected_id,
            next_id,
            token,
            leader_epoch,
            row.table,
        )
        return
    changed = connection.change(
        "UPDATE queue SET next_id = ?, token = ?, leader_epoch = ?"
        " WHERE table_name = ? AND id = ? AND leader_epoch <= ? AND next_id = ?",
        next_id,
        token,
        leader_epoch,
        row.table,
        row.id,
        leader_epoch,
        expected_id,
    )
    if not changed:
        check_end(connection, row, expected_id=expected_id, leader_epoch=leader_epoch)
        raise MovedError(f'the log in "{row.table}" ended elsewhere for a moment')


_TURN = "turn:"


def ask_for_turn(connection: Connection, row: QueueRow, duration_ms: int) -> None:
    """From the commit on, and for so long by the database's clock, clients without a broker do not append to a log.

    They look for this in the row when they lock it. It takes the place of the token of an append with a known outcome.
    """
    ((now_us,),) = connection.execute(f"SELECT {connection.dialect.now_us}")
    connection.change(
        "UPDATE queue SET token = ? WHERE table_name = ?", f"{_TURN}{now_us + duration_ms * 1000}", row.table
    )


def turn_until_us(token: str) -> int:
    """Until when it is the leader's turn, by the database's clock; 0 if it is not."""
    return int(token.removeprefix(_TURN)) if token.startswith(_TURN) else 0


def check_end(connection: Connection, row: QueueRow, *, expected_id: int, leader_epoch: int) -> None:
    """Locks the row of a log; LogFencedError or MovedError if the caller may not append at this end."""
    found = lock_row(connection, row)
    check_leads(found, leader_epoch)
    if found.next_id != expected_id:
        raise MovedError(f'the log in "{row.table}" no longer ends at {expected_id - 1}')


def check_leads(row: QueueRow, leader_epoch: int) -> None:
    if row.leader_epoch > leader_epoch:
        raise LogFencedError(f'"{row.table}" is led in epoch {row.leader_epoch}, and not in {leader_epoch} any more')


def save(connection: Connection, queue_id: int, changes: StateChanges) -> None:
    connection.upsert("queue_segment", _SEGMENT[:2], _SEGMENT, [(queue_id, *row) for row in changes.segments])
    connection.upsert("queue_epoch", _EPOCH[:2], _EPOCH, [(queue_id, *start) for start in changes.epochs])
    connection.upsert("queue_producer", _PRODUCER[:2], _PRODUCER, [(queue_id, *each) for each in changes.producers])
    keys = ("queue_id", "last_offset")
    connection.upsert("queue_aborted", keys, _ABORTED, [(queue_id, *each) for each in changes.aborted])


def load(connection: Connection, row: QueueRow) -> StoredState:
    """The state of a log whose row is locked."""
    segments = connection.execute(
        "SELECT base_offset, next_offset, bytes, first_time, max_time FROM queue_segment"
        " WHERE queue_id = ? AND next_offset > ? ORDER BY base_offset",
        row.id,
        row.start_offset,
    )
    epochs = connection.execute("SELECT epoch, start_offset FROM queue_epoch WHERE queue_id = ? ORDER BY epoch", row.id)
    aborted = connection.execute(
        "SELECT producer_id, first_offset, last_offset, stable_offset FROM queue_aborted"
        " WHERE queue_id = ? ORDER BY last_offset",
        row.id,
    )
    return StoredState(
        row,
        segments,
        [EpochStart(*start) for start in epochs],
        load_producers(connection, row),
        [AbortedEntry(*each) for each in aborted],
        load_compaction(connection, row),
    )


def load_compaction(connection: Connection, row: QueueRow) -> CompactionState:
    """How far compaction has come."""
    found = connection.execute("SELECT value FROM queue_state WHERE queue_id = ? AND name = ?", row.id, _COMPACTION)
    try:
        return CompactionState.from_bytes(found[0][0].encode()) if found else CompactionState()
    except ValueError as error:
        raise StorageError(f'how far compaction has come in "{row.table}" cannot be read: {error}') from error


def load_producers(connection: Connection, row: QueueRow) -> dict[int, ProducerEntry]:
    """Least recently seen first."""
    rows = connection.execute("SELECT producer_id, state FROM queue_producer WHERE queue_id = ?", row.id)
    try:
        entries = [(producer_id, read_entry(bytes(state))) for producer_id, state in rows]
    except ValueError as error:
        raise StorageError(f'what is stored of the producers of "{row.table}" cannot be read: {error}') from error
    return dict(sorted(entries, key=lambda each: _last_seen(each[1])))


def _last_seen(entry: ProducerEntry) -> tuple[int, int]:
    """When a producer was here, and of several in one millisecond, which was first."""
    last_batch = entry.batches[-1].base_offset if entry.batches else -1
    return entry.last_seen_ms, max(entry.marker_offset, entry.open_since, last_batch)


def save_compaction(connection: Connection, queue_id: int, state: CompactionState) -> None:
    connection.upsert("queue_state", _STATE[:2], _STATE, [(queue_id, _COMPACTION, state.to_bytes().decode())])


def trim(connection: Connection, queue_id: int, start_offset: int, first_epoch: int) -> None:
    """Forgets segments and aborted transactions that lie below the start, and epochs before the first there."""
    connection.change("DELETE FROM queue_segment WHERE queue_id = ? AND next_offset <= ?", queue_id, start_offset)
    connection.change("DELETE FROM queue_epoch WHERE queue_id = ? AND epoch < ?", queue_id, first_epoch)
    connection.change("DELETE FROM queue_aborted WHERE queue_id = ? AND last_offset < ?", queue_id, start_offset)


def cut(connection: Connection, queue_id: int, end_offset: int) -> None:
    """Forgets segments, epochs and aborted transactions that lie at or behind a new end."""
    connection.change("DELETE FROM queue_segment WHERE queue_id = ? AND base_offset >= ?", queue_id, end_offset)
    connection.change("DELETE FROM queue_epoch WHERE queue_id = ? AND start_offset >= ?", queue_id, end_offset)
    connection.change("DELETE FROM queue_aborted WHERE queue_id = ? AND last_offset >= ?", queue_id, end_offset)


def forget_details(connection: Connection, queue_id: int) -> None:
    """Forgets all but the row in `queue`."""
    for table in OWN_DETAILS:
        connection.change(f"DELETE FROM {table} WHERE queue_id = ?", queue_id)


def forget_producers(connection: Connection, queue_id: int, producers: Collection[int]) -> None:
    for producer_id in producers:
        connection.change("DELETE FROM queue_producer WHERE queue_id = ? AND producer_id = ?", queue_id, producer_id)


def forget_aborted(connection: Connection, queue_id: int, end_offset: int) -> None:
    """Forgets aborted transactions whose markers lie below an offset."""
    connection.change("DELETE FROM queue_aborted WHERE queue_id = ? AND last_offset < ?", queue_id, end_offset)
