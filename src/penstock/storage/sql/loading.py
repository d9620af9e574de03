"""What a log reads of itself from the database, when it is opened, taken over, or has to go back to what is committed.

Everything here runs inside a transaction, in a thread.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.storage.producers import ANY_SEQUENCE
from penstock.storage.snapshots import entry_bytes
from penstock.storage.sql import stored_state
from penstock.storage.sql.partition_table import PartitionTable
from penstock.storage.sql.stored_state import QueueRow, StoredState, check_leads, lock_row

logger = logging.getLogger(__name__)


class AddedRows(NamedTuple):
    """Rows that no segment covers: a client inserted them without a broker."""

    base_offset: int
    size: int
    newest_ms: int | None


class StoredLog(NamedTuple):
    """What the database has of a log."""

    state: StoredState
    added: AddedRows | None


class KnownEnd:
    """How far a log reached, as far as that is known from elsewhere than its row: from this broker's memory, and from
    offsets that groups have committed. A row that says less has lost records.
    """

    def __init__(self) -> None:
        self.offset = 0
        self.lost_from: int | None = None
        """Where the lost records began, until that was logged."""

    def learn(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def restore(self, connection: Connection, row: QueueRow) -> None:
        """In a thread, with the row locked: lost offsets become a gap, so that none is used for two records.

        Producers that have sent what is lost go on with a sequence that the log does not expect, and many would end for
        good if it was refused. So each may go on with any.
        """
        if row.end_offset >= self.offset:
            return
        self.lost_from = row.end_offset
        connection.change("UPDATE queue SET next_id = ? WHERE table_name = ?", self.offset + 1, row.table)
        producers = stored_state.load_producers(connection, row)
        for entry in producers.values():
            entry.begin_epoch(entry.epoch, ANY_SEQUENCE)
        kept = [(producer_id, entry_bytes(producer_id, entry)) for producer_id, entry in producers.items()]
        stored_state.save(connection, row.id, stored_state.StateChanges(producers=kept))


def load(connection: Connection, row: QueueRow, table: PartitionTable) -> StoredLog:
    """The log as it is stored now."""
    return _with_added(connection, stored_state.load(connection, lock_row(connection, row)), table)


def _with_added(connection: Connection, state: StoredState, table: PartitionTable) -> StoredLog:
    row = state.row
    covered = state.segments[-1][1] if state.segments else row.start_offset
    if covered >= row.end_offset:
        return StoredLog(state, None)
    return StoredLog(state, AddedRows(covered, *table.added(connection, covered, row.end_offset)))


def load_copy(connection: Connection, row: QueueRow, table: PartitionTable) -> StoredLog:
    """The log as a server has it that may be a replica, and goes on meanwhile: nothing is locked. `row` was read in
    this transaction, which holds a snapshot.
    """
    return _with_added(connection, stored_state.load(connection, row), table)


def load_as_leader(
    connection: Connection, row: QueueRow, table: PartitionTable, leader_epoch: int, known_end: KnownEnd
) -> StoredLog:
    """Like `load`, and takes in rows that were inserted without moving the end; LogFencedError if another leads."""
    row = lock_row(connection, row)
    check_leads(row, leader_epoch)
    known_end.restore(connection, row)
    last_end = table.last_end(connection)
    if last_end > max(row.end_offset, known_end.offset):
        logger.warning(
            "took in rows that were inserted behind the end of a log",
            extra=fields(table=row.table, end=row.end_offset, new_end=last_end),
        )
        connection.change("UPDATE queue SET next_id = ? WHERE table_name = ?", last_end + 1, row.table)
    return load(connection, row, table)


def take_row(connection: Connection, row: QueueRow, leader_epoch: int, known_end: KnownEnd) -> QueueRow:
    """Gives the row as it was, except for an end that it had lost. From the commit on no leader of an earlier epoch can
    append. LogFencedError if a later epoch has begun.
    """
    found = lock_row(connection, row)
    check_leads(found, leader_epoch)
    connection.change("UPDATE queue SET leader_epoch = ? WHERE table_name = ?", leader_epoch, row.table)
    known_end.restore(connection, found)
    return found._replace(next_id=max(found.next_id, known_end.offset + 1))
