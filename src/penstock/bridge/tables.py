"""The tables of a bridge in one database: their names and columns, and the layout that all bridges must agree on."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from penstock.bridge.intake_message import TIMER_KEY_BYTES
from penstock.errors import ConfigError
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect

MAX_TOPIC = 249
ROW_COLUMNS = (
    "due",
    "seq",
    "deliver_at",
    "size",
    "topic",
    "part",
    "msg_key",
    "body",
    "headers",
    "timer_key",
    "schedule",
)
_NAME_CHARS = 24
_HASH_DIGITS = 8
_SOURCE_CHARS = 64
_MEMBER_CHARS = 64
_TEXT_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where messages are stored. Bridges that differ in it would store a message in two places."""

    databases: int
    index: int
    """Of this database among them."""
    tables: int
    """Shards a database."""
    plan: str
    period_ms: int
    by_topic: bool

    def as_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


class TableNames:
    """The names of tables of one group."""

    def __init__(self, group: str) -> None:
        plain = re.sub(r"[^a-z0-9_]", "_", group.lower())[:_NAME_CHARS]
        # Two groups must not share tables because their names look alike.
        ending = "" if plain == group else f"_{hashlib.sha256(group.encode()).hexdigest()[:_HASH_DIGITS]}"
        self.prefix = f"bridge_{plain}{ending}"
        self.layout, self.positions, self.shards, self.slots, self.leases, self.members = (
            f"{self.prefix}_{name}" for name in ("layout", "positions", "shards", "slots", "leases", "members")
        )

    def rows(self, shard: int, slot: int) -> str:
        return f"{self.prefix}_{shard}_{slot}"


def create_tables(connection: Connection, names: TableNames, layout: Layout) -> None:
    """Inside of `run_ddl`; a ConfigError if the tables are there with another layout."""
    connection.lock_ddl()
    dialect = connection.dialect
    big, text = f"{dialect.big_integer} NOT NULL", f"{dialect.varchar(_TEXT_CHARS)} NOT NULL"
    made = [
        dialect.create_table(names.layout, [("id", big), ("value", text)], primary_key=["id"]),
        dialect.create_table(
            names.positions,
            [("source", f"{dialect.varchar(_SOURCE_CHARS)} NOT NULL"), ("next_offset", big)],
            primary_key=["source"],
            is_updated_often=True,
        ),
        dialect.create_table(
            names.shards,
            [
                ("shard", big),
                ("incarnation", f"{dialect.varchar(32)} NOT NULL"),
                *((name, big) for name in ("next_seq", "first_slot", "current_slot", "turned_at", "pending")),
            ],
            primary_key=["shard"],
            is_updated_often=True,
        ),
        dialect.create_table(names.slots, [("shard", big), ("slot", big)], primary_key=["shard", "slot"]),
        dialect.create_table(
            names.leases,
            [("shard", big), ("owner", f"{dialect.varchar(_MEMBER_CHARS)} NOT NULL"), ("epoch", big), ("until", big)],
            primary_key=["shard"],
            is_updated_often=True,
        ),
        dialect.create_table(
            names.members,
            [("member", f"{dialect.varchar(_MEMBER_CHARS)} NOT NULL"), ("until", big)],
            primary_key=["member"],
        ),
    ]
    for statements in made:
        for statement in statements:
            connection.change(statement)
    _check_layout(connection, names, layout)


def _check_layout(connection: Connection, names: TableNames, layout: Layout) -> None:
    table = connection.dialect.quoted(names.layout)
    found = connection.execute(f"SELECT value FROM {table} WHERE id = 1")
    if not found:
        connection.upsert(names.layout, ["id"], ["id", "value"], [(1, layout.as_text())])
    elif found[0][0] != layout.as_text():
        raise ConfigError(
            f"the tables {names.prefix}_* were made with other settings: {found[0][0]}; the bridge was started with"
            f" {layout.as_text()} and stores nothing. Use those settings, or another --group for another set of tables"
            " while a bridge with the old settings forwards what waits"
        )


def create_rows_table(dialect: Dialect, table: str) -> list[str]:
    """The statements that make a slot."""
    big = dialect.big_integer
    columns = [
        ("due", f"{big} NOT NULL"),
        ("seq", f"{big} NOT NULL"),
        ("deliver_at", big),
        ("size", f"{big} NOT NULL"),
        ("topic", f"{dialect.varchar(MAX_TOPIC)} NOT NULL"),
        ("part", big),
        ("msg_key", dialect.blob),
        ("body", dialect.blob),
        ("headers", dialect.long_text),
        ("timer_key", dialect.key_bytes(TIMER_KEY_BYTES)),
        ("schedule", dialect.varchar(_TEXT_CHARS)),
    ]
    return dialect.create_table(table, columns, primary_key=["due", "seq"], indexes=["timer_key"])
