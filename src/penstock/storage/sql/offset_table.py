"""The table of the offsets that groups have committed in a topic: a copy, which a person can change.

Everything here runs inside a transaction, in a thread. `known_offset` is what the broker wrote: a row whose
`committed_offset` is another was changed by a person, and is left alone until that has been dealt with
(`docs/internals/sql.md`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from penstock.ids import TopicId
from penstock.sql.database import Connection
from penstock.storage.sql.coordinator_fence import Fence, fenced_shards
from penstock.storage.sql.schema import check_table

NO_OFFSET = -1
"""The `known_offset` of a row that a person has inserted."""

_MAX_GROUP = 255
_KEY = ("consumer_group", "partition")
_COLUMNS = (*_KEY, "committed_offset", "known_offset")


class OffsetRow(NamedTuple):
    """A row as it is in the table."""

    group_id: str
    partition: int
    committed: int
    known: int

    @property
    def is_edited(self) -> bool:
        """Whether a person has changed it."""
        return self.committed != self.known


class HeldOffset(NamedTuple):
    """What the coordinator has, and the table should say; None: no row."""

    shard: int
    group_id: str
    partition: int
    offset: int | None


class SettledEdit(NamedTuple):
    """What an edited row becomes, if it still is as it was found; None: it is deleted."""

    shard: int
    row: OffsetRow
    offset: int | None


class Bounds(NamedTuple):
    """The first offset of a partition, and the one behind its last record."""

    start: int
    end: int


def can_show(group_id: str) -> bool:
    """Whether the name of a group can be a key in every database: some take a space at the end for nothing."""
    return len(group_id) <= _MAX_GROUP and "\0" not in group_id and not group_id.endswith(" ")


def create(connection: Connection, table: str) -> None:
    """Makes the table, unless it is there; StorageError if what is there is something else."""
    dialect = connection.dialect
    number = f"{dialect.big_integer} NOT NULL"
    columns = (
        ("consumer_group", f"{dialect.varchar(_MAX_GROUP)} NOT NULL"),
        ("partition", number),
        ("committed_offset", number),
        ("known_offset", f"{number} DEFAULT {NO_OFFSET}"),
    )
    for statement in dialect.create_table(table, columns, primary_key=_KEY, is_updated_often=True):
        connection.change(statement)
    check_table(connection, table, columns)


def read(connection: Connection, table: str) -> list[OffsetRow]:
    """All rows; SchemaChanged if there is no such table."""
    return [OffsetRow(*row) for row in connection.execute(_select(connection, table))]


def edited(connection: Connection, table: str) -> list[OffsetRow]:
    """The rows that a person has changed."""
    sql = f"{_select(connection, table)} WHERE committed_offset <> known_offset"
    return [OffsetRow(*row) for row in connection.execute(sql)]


def highest(connection: Connection, table: str, partition: int) -> int:
    """The highest offset that a group has committed in a partition; 0 if there is none."""
    quoted = connection.dialect.quoted
    ((found,),) = connection.execute(
        f"SELECT MAX(known_offset) FROM {quoted(table)} WHERE {quoted('partition')} = ?", partition
    )
    return max(0, found or 0)


def bounds(connection: Connection, topic: str, topic_id: TopicId) -> dict[int, Bounds]:
    """By partition, of all that there are."""
    rows = connection.execute(
        "SELECT partition_index, start_offset, next_id FROM queue WHERE topic_id = ? AND topic = ?",
        str(topic_id),
        topic,
    )
    return {partition: Bounds(start, next_id - 1) for partition, start, next_id in rows}


def write(connection: Connection, table: str, offsets: Sequence[HeldOffset], fence: Fence) -> None:
    """Brings rows up to date, but those that a person has changed, and those of shards that others lead.

    Raises Contended if another client has locked one of them, Duplicate if one was inserted meanwhile.
    """
    fenced = fenced_shards(connection, fence)
    ours = [each for each in offsets if each.shard not in fenced]
    stored = _locked(connection, table, {each.group_id for each in ours})
    missing, moved = [], []
    for each in ours:
        row = stored.get((each.group_id, each.partition))
        if each.offset is None:
            if row is not None:
                _delete(connection, table, row)
        elif row is None:
            missing.append((each.group_id, each.partition, each.offset, each.offset))
        elif not row.is_edited and row.known != each.offset:
            moved.append((each.group_id, each.partition, each.offset, each.offset))
    connection.insert(table, _COLUMNS, missing)
    connection.upsert(table, _KEY, _COLUMNS, moved)


def settle(connection: Connection, table: str, settlements: Sequence[SettledEdit], fence: Fence) -> None:
    """Ends edits; a row that was changed again stays as it is. Contended if another client has locked one of them."""
    quoted = connection.dialect.quoted
    fenced = fenced_shards(connection, fence)
    _locked(connection, table, {each.row.group_id for each in settlements})
    for shard, row, offset in settlements:
        if shard in fenced:
            continue
        if offset is None:
            _delete(connection, table, row)
        else:
            connection.change(
                f"UPDATE {quoted(table)} SET committed_offset = ?, known_offset = ?"
                f" WHERE consumer_group = ? AND {quoted('partition')} = ? AND committed_offset = ?",
                offset,
                offset,
                row.group_id,
                row.partition,
                row.committed,
            )


def _locked(connection: Connection, table: str, groups: Collection[str]) -> dict[tuple[str, int], OffsetRow]:
    """All rows of some groups."""
    if not groups:
        return {}
    marks = ", ".join("?" * len(groups))
    found = connection.execute(
        f"{_select(connection, table)} WHERE consumer_group IN ({marks})"
        f" ORDER BY {connection.dialect.listed(_KEY)}{connection.dialect.for_update_no_wait}",
        *sorted(groups),
    )
    rows = [OffsetRow(*row) for row in found]
    return {(row.group_id, row.partition): row for row in rows}


def _delete(connection: Connection, table: str, row: OffsetRow) -> None:
    quoted = connection.dialect.quoted
    connection.change(
        f"DELETE FROM {quoted(table)} WHERE consumer_group = ? AND {quoted('partition')} = ? AND committed_offset = ?",
        row.group_id,
        row.partition,
        row.committed,
    )


def _select(connection: Connection, table: str) -> str:
    return f"SELECT {connection.dialect.listed(_COLUMNS)} FROM {connection.dialect.quoted(table)}"
