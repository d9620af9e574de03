"""Tables that show people and their tools what there is in the cluster: a copy, which brokers keep true.

Everything here runs inside a transaction, in a thread. Writers are fenced (`coordinator_fence.py`): the coordinator of
a group writes the rows of that group, the controller those of topics and databases. A write compares what is stored
with what should be, so it can be repeated, and mends whatever it finds. `docs/formats/sql.md` describes the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect, Row
from penstock.sql.migrations import Component
from penstock.storage.sql.coordinator_fence import CONTROLLER, Fence, fenced_shards
from penstock.storage.sql.schema import check_table

T = TypeVar("T")

MAX_TEXT = 255
_NAMES_A_QUERY = 500


class ColumnKind(Enum):
    """What a column holds."""

    TEXT = auto()
    OPTIONAL_TEXT = auto()
    NUMBER = auto()
    OPTIONAL_NUMBER = auto()
    JSON = auto()

    def spelled(self, dialect: Dialect) -> str:
        match self:
            case ColumnKind.TEXT:
                return f"{dialect.varchar(MAX_TEXT)} NOT NULL"
            case ColumnKind.OPTIONAL_TEXT:
                return dialect.varchar(MAX_TEXT)
            case ColumnKind.NUMBER:
                return f"{dialect.big_integer} NOT NULL"
            case ColumnKind.OPTIONAL_NUMBER:
                return dialect.big_integer
            case ColumnKind.JSON:
                return f"{dialect.long_text} NOT NULL"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table. Its rows have the key, then the values, then what is written once."""

    name: str
    key: Mapping[str, ColumnKind]
    """Rows are found by the first of its columns."""
    values: Mapping[str, ColumnKind]
    once: Mapping[str, ColumnKind]
    """Set when a row is made, and kept as long as it is there."""
    indexes: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, ColumnKind]:
        return {**self.key, **self.values, **self.once}

    @property
    def scope(self) -> str:
        return next(iter(self.key))


TOPIC = Table(
    "topic",
    key={"topic_id": ColumnKind.TEXT},
    values={
        "name": ColumnKind.TEXT,
        "partitions": ColumnKind.NUMBER,
        "storage": ColumnKind.TEXT,
        "view_of": ColumnKind.OPTIONAL_TEXT,
        "is_internal": ColumnKind.NUMBER,
        "settings": ColumnKind.JSON,
    },
    once={"created_at": ColumnKind.NUMBER},
    indexes=("name",),
)
DB_NODE = Table(
    "db_node",
    key={"group_name": ColumnKind.TEXT, "position": ColumnKind.NUMBER},
    values={
        "role": ColumnKind.TEXT,
        "dialect": ColumnKind.TEXT,
        "host": ColumnKind.TEXT,
        "port": ColumnKind.NUMBER,
        "database_name": ColumnKind.TEXT,
        "user_name": ColumnKind.TEXT,
        "state": ColumnKind.TEXT,
        "is_draining": ColumnKind.NUMBER,
    },
    once={},
)
CONSUMER_GROUP = Table(
    "consumer_group",
    key={"name": ColumnKind.TEXT},
    values={
        "protocol": ColumnKind.TEXT,
        "protocol_type": ColumnKind.TEXT,
        "state": ColumnKind.TEXT,
        "generation": ColumnKind.NUMBER,
        "assignor": ColumnKind.OPTIONAL_TEXT,
        "members": ColumnKind.NUMBER,
        "coordinator_id": ColumnKind.NUMBER,
        "settings": ColumnKind.JSON,
    },
    once={},
)
CONSUMER = Table(
    "consumer",
    key={"consumer_group": ColumnKind.TEXT, "consumer_id": ColumnKind.TEXT},
    values={"client_id": ColumnKind.TEXT, "instance_id": ColumnKind.OPTIONAL_TEXT, "host": ColumnKind.TEXT},
    once={"joined_at": ColumnKind.NUMBER},
)
CONSUMER_GROUP_CONSUMER = Table(
    "consumer_group_consumer",
    key={"consumer_group": ColumnKind.TEXT, "consumer_id": ColumnKind.TEXT},
    values={"generation": ColumnKind.NUMBER, "partitions": ColumnKind.NUMBER},
    once={},
)
CONSUMER_GROUP_TOPIC = Table(
    "consumer_group_topic",
    key={"consumer_group": ColumnKind.TEXT, "topic": ColumnKind.TEXT},
    values={"is_subscribed": ColumnKind.NUMBER},
    once={},
    indexes=("topic",),
)
QUEUE_OFFSET = Table(
    "queue_offset",
    key={"consumer_group": ColumnKind.TEXT, "topic": ColumnKind.TEXT, "partition_index": ColumnKind.NUMBER},
    values={"committed_offset": ColumnKind.OPTIONAL_NUMBER, "consumer_id": ColumnKind.OPTIONAL_TEXT},
    once={},
    indexes=("topic",),
)
GROUP_TABLES = (CONSUMER_GROUP, CONSUMER, CONSUMER_GROUP_CONSUMER, CONSUMER_GROUP_TOPIC, QUEUE_OFFSET)
_TABLES = (TOPIC, DB_NODE, *GROUP_TABLES)


class GroupRows(NamedTuple):
    """What the tables should say of one group; no rows: there is no such group."""

    shard: int
    group_id: str
    rows: Mapping[Table, Sequence[Row]]


def write_groups(connection: Connection, groups: Sequence[GroupRows], fence: Fence) -> None:
    """Makes the rows of these groups what they should be, but for groups that another broker coordinates.

    Raises Contended if another client has locked one of them, Duplicate if one was inserted meanwhile.
    """
    fenced = fenced_shards(connection, fence)
    ours = [each for each in groups if each.shard not in fenced]
    names = [each.group_id for each in ours]
    for table in GROUP_TABLES:
        _replace(connection, table, names, [row for each in ours for row in each.rows.get(table, ())])


def groups_shown(connection: Connection) -> set[str]:
    """All groups of which some table says something."""
    return {
        row[0]
        for table in GROUP_TABLES
        for row in connection.execute(
            f"SELECT DISTINCT {connection.dialect.quoted(table.scope)} FROM {connection.dialect.quoted(table.name)}"
        )
    }


def write_cluster(
    connection: Connection,
    topics: Sequence[Row],
    topic_ids: Collection[str] | None,
    nodes: Sequence[Row],
    controller_epoch: int,
) -> bool:
    """Makes the rows of these topics what they should be, of all if `topic_ids` is None, and those of all databases.

    False if there is a later controller.
    """
    if fenced_shards(connection, Fence(CONTROLLER, {0: controller_epoch})):
        return False
    _replace(connection, TOPIC, topic_ids, topics)
    _replace(connection, DB_NODE, None, nodes)
    return True


def _create_tables(connection: Connection) -> None:
    """Version 1."""
    dialect = connection.dialect
    for table in _TABLES:
        columns = [(name, kind.spelled(dialect)) for name, kind in table.columns.items()]
        made, *others = dialect.create_table(table.name, columns, primary_key=list(table.key), indexes=table.indexes)
        connection.change(made)
        # Of such a name there may be a table that has nothing to do with us.
        check_table(connection, table.name, columns)
        for statement in others:
            connection.change(statement)


METADATA = Component("metadata", (_create_tables,))
"""The tables of this module. They are in the database of `sql.url` alone."""


def _replace(connection: Connection, table: Table, scope: Collection[str] | None, rows: Sequence[Row]) -> None:
    """Makes `rows` all that there is with a first key in `scope`; None: all that there is."""
    key, kept = len(table.key), len(table.key) + len(table.values)
    stored = {row[:key]: row for row in _rows(connection, table, scope)}
    wanted = {row[:key]: row for row in rows}
    gone = [each for each in stored if each not in wanted]
    new = [row for each, row in wanted.items() if each not in stored]
    changed = [
        (*row[:kept], *stored[each][kept:])
        for each, row in wanted.items()
        if each in stored and stored[each][:kept] != row[:kept]
    ]
    _lock(connection, table, {row[0] for row in (*gone, *changed)})
    _delete(connection, table, gone)
    connection.insert(table.name, list(table.columns), new)
    connection.upsert(table.name, list(table.key), list(table.columns), changed)


def _rows(connection: Connection, table: Table, scope: Collection[str] | None) -> Iterator[Row]:
    dialect = connection.dialect
    sql = f"SELECT {dialect.listed(table.columns)} FROM {dialect.quoted(table.name)}"
    if scope is None:
        yield from connection.execute(sql)
        return
    for names in _in_parts(sorted(scope)):
        yield from connection.execute(f"{sql} WHERE {dialect.quoted(table.scope)} IN ({_marks(names)})", *names)


def _lock(connection: Connection, table: Table, scope: Collection[str]) -> None:
    """A person who has locked a row must not be waited for: others wait for us."""
    dialect = connection.dialect
    if not dialect.for_update:
        return
    for names in _in_parts(sorted(scope)):
        connection.execute(
            f"SELECT {dialect.quoted(table.scope)} FROM {dialect.quoted(table.name)}"
            f" WHERE {dialect.quoted(table.scope)} IN ({_marks(names)}){dialect.for_update_no_wait}",
            *names,
        )


def _delete(connection: Connection, table: Table, keys: Sequence[Row]) -> None:
    """Many with one statement: those that differ in the last column of the key only."""
    quoted = connection.dialect.quoted
    *first, last = table.key
    lasts: dict[Row, list[object]] = {}
    for each in keys:
        lasts.setdefault(each[:-1], []).append(each[-1])
    where = "".join(f"{quoted(column)} = ? AND " for column in first)
    for begin, ends in lasts.items():
        for some in _in_parts(ends):
            connection.change(
                f"DELETE FROM {quoted(table.name)} WHERE {where}{quoted(last)} IN ({_marks(some)})", *begin, *some
            )


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(values), _NAMES_A_QUERY):
        yield values[at : at + _NAMES_A_QUERY]
