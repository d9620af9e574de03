"""The table `queue_inbox`: delayed messages of clients without a broker, on their way to the companion of a partition.

A client puts a batch there under the lock of the partition's row in `queue`; the leader takes batches from there in
order, appends each as a producer's batch, and deletes it (`docs/internals/direct.md`). Numbers count the
messages of a partition: they are the sequences of that producer, so a batch that was appended and not deleted is known
again.

Everything here runs inside a transaction, in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.records.batch import MAX_SEQUENCE
from penstock.sql import migrations
from penstock.sql.database import Connection
from penstock.storage.producers import ProducerEntry
from penstock.storage.snapshots import read_entry

TABLE = "queue_inbox"
INBOX_PRODUCER_ID = (1 << 62) - 1
"""The producer that stands for all messages that come through the table. No client is given this id."""
INBOX_PRODUCER_EPOCH = 0

_KEY = ("queue_id", "first_number")
_COLUMNS = (*_KEY, "message_count", "batch")
BATCHES_A_LOOK = 500


class InboxBatch(NamedTuple):
    """Messages that were sent together."""

    queue_id: int
    first_number: int
    message_count: int
    batch: bytes
    """A record batch of no producer. Its headers say when each record is due."""

    @property
    def base_sequence(self) -> int:
        return self.first_number & MAX_SEQUENCE


def _create(connection: Connection) -> None:
    dialect = connection.dialect
    number = f"{dialect.big_integer} NOT NULL"
    columns = (
        ("queue_id", number),
        ("first_number", number),
        ("message_count", number),
        ("batch", f"{dialect.blob} NOT NULL"),
    )
    for statement in dialect.create_table(TABLE, columns, primary_key=_KEY):
        connection.change(statement)


INBOX = migrations.Component("inbox", (_create,))
"""In every database that has partitions to which a client without a broker has sent delayed messages."""


def put(connection: Connection, queue_id: int, first_number: int, message_count: int, batch: bytes) -> None:
    connection.insert(TABLE, _COLUMNS, [(queue_id, first_number, message_count, batch)])


def next_number(connection: Connection, queue_id: int) -> int:
    """The number of the next message. The row of the partition in `queue` is locked."""
    rows = connection.execute(
        f"SELECT first_number, message_count FROM {TABLE} WHERE queue_id = ? ORDER BY first_number DESC LIMIT 1",
        queue_id,
    )
    if rows:
        return int(rows[0][0]) + int(rows[0][1])
    states = connection.execute(
        "SELECT state FROM queue_producer WHERE queue_id = ? AND producer_id = ?", queue_id, INBOX_PRODUCER_ID
    )
    entry: ProducerEntry | None = read_entry(bytes(states[0][0])) if states else None
    return 0 if entry is None or not entry.batches else (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE


def exists(connection: Connection) -> bool:
    return bool(connection.execute(connection.dialect.find_table, TABLE))


def read(connection: Connection) -> list[InboxBatch]:
    """Some batches of all partitions, in order."""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM {TABLE} ORDER BY queue_id, first_number LIMIT {BATCHES_A_LOOK}"
    )
    return [InboxBatch(queue_id, first, count, bytes(batch)) for queue_id, first, count, batch in rows]


def read_of(connection: Connection, queue_ids: Sequence[int], limit: int | None = None) -> list[InboxBatch]:
    """The batches of some partitions, in order."""
    if not queue_ids:
        return []
    marks = ", ".join("?" * len(queue_ids))
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM {TABLE} WHERE queue_id IN ({marks}) ORDER BY queue_id, first_number"
        + ("" if limit is None else f" LIMIT {limit}"),
        *queue_ids,
    )
    return [InboxBatch(queue_id, first, count, bytes(batch)) for queue_id, first, count, batch in rows]


def delete(connection: Connection, taken: Sequence[InboxBatch]) -> None:
    for each in taken:
        connection.change(
            f"DELETE FROM {TABLE} WHERE queue_id = ? AND first_number = ?", each.queue_id, each.first_number
        )
