"""The tables: the engine's own, and those of partitions (`docs/internals/sql.md`).

The engine's own have a version (`penstock.sql.migrations`). Those of a partition are made with its log, and looked at
when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import StorageError
from penstock.ids import TopicId
from penstock.sql import migrations
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect
from penstock.sql.errors import SchemaChanged, SchemaTooNew
from penstock.sql.group import HEARTBEAT_TABLE
from penstock.storage.sql.record_rows import MAX_BIZ_ID, MAX_TAGS

Columns = Sequence[tuple[str, str]]

MAX_TOPIC = 255
_MAX_TABLE = 63
_MAX_STATE_NAME = 32
_MAX_CLUSTER = 255


def is_current(connection: Connection) -> bool:
    """Whether the engine's own tables are of this version; StorageError if they are of a newer one."""
    try:
        return migrations.is_current(connection, STORAGE)
    except SchemaTooNew as error:
        raise StorageError(str(error)) from error


def migrate(connection: Connection) -> None:
    """Brings the engine's own tables to this version, inside of `run_ddl`."""
    try:
        migrations.perform(connection, STORAGE)
    except SchemaTooNew as error:
        raise StorageError(str(error)) from error


def check_own_tables(connection: Connection) -> None:
    """StorageError if one is missing or was altered."""
    for table, columns, _ in _own_tables(connection.dialect):
        check_table(connection, table, columns)


def _create_own_tables(connection: Connection) -> None:
    """Version 1: what was made before there were versions, unless it is there."""
    dialect = connection.dialect
    for table, columns, key in _own_tables(dialect):
        is_queue = table == "queue"
        for statement in dialect.create_table(
            table, columns, primary_key=key, indexes=("id",) if is_queue else (), is_updated_often=is_queue
        ):
            connection.change(statement)
        check_table(connection, table, columns)


def cluster_of(connection: Connection) -> str | None:
    """The cluster that the tables belong to; None if none has used them yet."""
    found = connection.execute("SELECT cluster_id FROM queue_cluster WHERE id = 1")
    return str(found[0][0]) if found else None


def set_cluster(connection: Connection, cluster_id: str) -> None:
    """Duplicate if they belong to one."""
    connection.insert("queue_cluster", ("id", "cluster_id"), [(1, cluster_id)])


def has_logs(connection: Connection, topic_id: TopicId) -> bool:
    """Whether there is a log of a topic."""
    return bool(connection.execute("SELECT id FROM queue WHERE topic_id = ? LIMIT 1", str(topic_id)))


def record_columns(dialect: Dialect) -> Columns:
    """The columns of a partition's table, in the order of `record_rows.COLUMNS`."""
    return (
        ("id", f"{dialect.big_integer} NOT NULL"),
        ("biz_id", dialect.varchar(MAX_BIZ_ID)),
        ("tags", dialect.varchar(MAX_TAGS)),
        ("msg_key", dialect.blob),
        ("body", dialect.blob),
        ("headers", dialect.long_text),
        ("send_time", dialect.big_integer),
        ("receive_time", dialect.big_integer),
        ("attributes", f"{dialect.small_integer} NOT NULL DEFAULT 0"),
        ("producer_id", f"{dialect.big_integer} NOT NULL DEFAULT -1"),
        ("producer_epoch", f"{dialect.small_integer} NOT NULL DEFAULT -1"),
    )


def batch_columns(dialect: Dialect) -> Columns:
    """The columns of the table of a companion log."""
    return (
        ("id", f"{dialect.big_integer} NOT NULL"),
        ("next_id", f"{dialect.big_integer} NOT NULL"),
        ("due", f"{dialect.big_integer} NOT NULL"),
        ("batch", f"{dialect.blob} NOT NULL"),
    )


def create_table(
    connection: Connection, table: str, columns: Columns, indexes: Sequence[str] = (), *, has_ranges: bool = False
) -> None:
    """Makes the table of a log, unless it is there; StorageError if what is there is something else."""
    dialect = connection.dialect
    if not connection.execute(dialect.find_table, table):
        for statement in dialect.create_table(
            table, columns, primary_key=("id",), indexes=indexes, has_ranges=has_ranges
        ):
            connection.change(statement)
    check_table(connection, table, columns)


def is_empty(connection: Connection, table: str) -> bool:
    return not connection.execute(f"SELECT id FROM {connection.dialect.quoted(table)} LIMIT 1")


def check_table(connection: Connection, table: str, columns: Columns) -> None:
    """StorageError if a table is missing, or lacks a column."""
    # Of the table: SQLite takes a quoted name that it does not know for a text.
    names = ", ".join(f"own.{connection.dialect.quoted(name)}" for name, _ in columns)
    try:
        connection.execute(f"SELECT {names} FROM {connection.dialect.quoted(table)} own LIMIT 0")
    except SchemaChanged as error:
        raise altered([table], error) from error


def altered(tables: Iterable[str], error: Exception) -> StorageError:
    """What is said when a statement about these tables of logs, and the engine's own, does not fit them."""
    names = " or ".join(f'"{table}"' for table in tables)
    return StorageError(
        f"the table {names} is missing or was altered, or another one that its log needs; nothing was changed: put it"
        f" back as it was and restart the broker: {error}"
    )


def drop_table(connection: Connection, table: str) -> None:
    connection.change(f"DROP TABLE IF EXISTS {connection.dialect.quoted(table)}")


def _own_tables(dialect: Dialect) -> list[tuple[str, Columns, Sequence[str]]]:
    number = f"{dialect.big_integer} NOT NULL"
    blob = f"{dialect.blob} NOT NULL"
    return [
        (
            "queue",
            (
                ("id", number),
                ("topic", f"{dialect.varchar(MAX_TOPIC)} NOT NULL"),
                ("topic_id", f"{dialect.varchar(36)} NOT NULL"),
                ("partition_index", number),
                ("table_name", f"{dialect.varchar(_MAX_TABLE)} NOT NULL"),
                ("next_id", number),
                ("start_offset", number),
                ("leader_epoch", number),
                ("token", f"{dialect.varchar(32)} NOT NULL"),
            ),
            ("table_name",),
        ),
        (
            "queue_segment",
            (
                ("queue_id", number),
                ("base_offset", number),
                ("next_offset", number),
                ("bytes", number),
                ("first_time", number),
                ("max_time", number),
            ),
            ("queue_id", "base_offset"),
        ),
        (
            "queue_epoch",
            (("queue_id", number), ("epoch", number), ("start_offset", number)),
            ("queue_id", "epoch"),
        ),
        (
            "queue_producer",
            (("queue_id", number), ("producer_id", number), ("state", blob)),
            ("queue_id", "producer_id"),
        ),
        (
            "queue_aborted",
            (
                ("queue_id", number),
                ("producer_id", number),
                ("first_offset", number),
                ("last_offset", number),
                ("stable_offset", number),
            ),
            ("queue_id", "last_offset"),
        ),
        (
            "queue_state",
            (
                ("queue_id", number),
                ("name", f"{dialect.varchar(_MAX_STATE_NAME)} NOT NULL"),
                ("value", f"{dialect.long_text} NOT NULL"),
            ),
            ("queue_id", "name"),
        ),
        (
            "queue_coordinator",
            (("topic_id", f"{dialect.varchar(36)} NOT NULL"), ("shard", number), ("leader_epoch", number)),
            ("topic_id", "shard"),
        ),
        (HEARTBEAT_TABLE, (("id", number), ("written_ms", number)), ("id",)),
        (
            "queue_cluster",
            (("id", number), ("cluster_id", f"{dialect.varchar(_MAX_CLUSTER)} NOT NULL")),
            ("id",),
        ),
    ]


STORAGE = migrations.Component("storage", (_create_own_tables,))
"""The engine's own tables. They are in every database that has partitions."""

OWN_DETAILS = ("queue_segment", "queue_epoch", "queue_producer", "queue_aborted", "queue_state")
"""The tables that have rows of a log, by `queue_id`."""
