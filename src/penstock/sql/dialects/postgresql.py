"""PostgreSQL by psycopg; many rows at once go in by COPY."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from itertools import chain
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.config.database_address import DatabaseAddress
from penstock.sql.dialects.dialect import (
    Dialect,
    OnAbort,
    Row,
    Session,
    SocketHandle,
    TableRange,
    chunks,
    last_of_each_key,
    pieces_of,
)
from penstock.sql.errors import (
    Contended,
    DatabaseError,
    Denied,
    Duplicate,
    NoRoom,
    NullRefused,
    ReadOnly,
    SchemaChanged,
    TooLarge,
    Unreachable,
)

_COPY_FROM_ROWS = 16
"""COPY takes one round trip more than an INSERT."""
_ROWS_A_STATEMENT = 500
_PARAMETERS = 65_535
_RANGE_END = re.compile(r"TO \('?(\d+)'?\)")
_DDL_LOCK = 0x50454E53
"""Of the advisory lock that every process takes to make tables: two that make the same table at once would fail."""

_STATES: dict[type[DatabaseError], tuple[str, ...]] = {
    # Connection errors, out of connections, shutting down or starting, idle for too long.
    Unreachable: ("08", "53300", "57P01", "57P02", "57P03", "57P05", "25P03", "40003"),
    # Serialization, deadlock, lock wait, cancelled or a time limit of the server.
    Contended: ("40001", "40P01", "55P03", "57014"),
    ReadOnly: ("25006",),
    NoRoom: ("53100",),
    TooLarge: ("54000",),
    # No database, schema, table, column; the value does not fit the type.
    SchemaChanged: ("3D000", "3F000", "42P01", "42703", "42804", "22001", "22003", "22P02", "22P03", "0A000"),
    NullRefused: ("23502",),
    Denied: ("28", "42501"),
    Duplicate: ("23505",),
}
# What is refused while connecting has no state in libpq, only a text.
_AT_CONNECT: dict[re.Pattern[str], type[DatabaseError]] = {
    re.compile(
        "authentication failed|no pg_hba.conf entry|no password supplied|permission denied"
        '|role ".*" does not exist|role ".*" is not permitted to log in'
    ): Denied,
    re.compile('database ".*" does not exist'): SchemaChanged,
}


class PostgreSqlSession(Session):
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._handle = SocketHandle(connection.fileno())
        self._dialect = PostgreSqlDialect()
        # The types of columns by table, for COPY; forgotten after an error, because a table may have changed.
        self._types: dict[tuple[str, ...], list[int]] = {}
        self._pipeline: AbstractContextManager[psycopg.Pipeline] | None = None
        self._changes: list[psycopg.Cursor[Row]] = []

    @property
    def driver_connection(self) -> Any:
        return self._connection

    def begin(self, *, is_read_only: bool) -> None:
        """A transaction begins with its first statement. One that only reads needs none: each of its statements sees
        what is committed either way, and two round trips are saved.
        """
        self._connection.autocommit = is_read_only

    def hold_snapshot(self) -> None:
        self._connection.autocommit = False
        self._connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def begin_ddl(self) -> None:
        self._connection.autocommit = False
        self._connection.execute(f"SELECT pg_advisory_xact_lock({_DDL_LOCK})".encode())

    def end_ddl(self) -> None:
        self._connection.commit()

    def defer(self) -> None:
        self._pipeline = self._connection.pipeline()
        self._pipeline.__enter__()

    def lock_ddl(self) -> None:
        """Locked since `begin_ddl`."""

    def limit_lock_wait(self) -> None:
        self._connection.execute(b"SET LOCAL lock_timeout = '1s'")

    def commit(self) -> None:
        self._connection.commit()
        self._end_pipeline()
        changes, self._changes = self._changes, []
        if any(cursor.rowcount == 0 for cursor in changes):
            raise SchemaChanged("a row that was to be changed is missing")

    def rollback(self) -> None:
        self._types.clear()
        self._changes.clear()
        with suppress(psycopg.Error):
            self._end_pipeline()
        self._connection.rollback()

    def _end_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)

    def execute(self, sql: str, params: Sequence[object]) -> list[Row]:
        with self._connection.cursor(binary=True) as cursor:
            cursor.execute(_translated(sql, bool(params)), params or None)
            return cursor.fetchall() if cursor.description else []

    def change(self, sql: str, params: Sequence[object]) -> int:
        if self._pipeline is not None:
            self._changes.append(self._connection.execute(_translated(sql, bool(params)), params or None))
            return 1
        with self._connection.cursor() as cursor:
            cursor.execute(_translated(sql, bool(params)), params or None)
            return cursor.rowcount

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if len(rows) < _COPY_FROM_ROWS:
            self._insert(self._dialect.insert_head(table, columns), "", len(columns), rows)
            return
        self._end_pipeline()  # COPY cannot be in one
        types = self._types_of(table, columns)
        into = f"COPY {self._dialect.quoted(table)} ({self._dialect.listed(columns)}) FROM STDIN (FORMAT BINARY)"
        try:
            with self._connection.cursor() as cursor, cursor.copy(into.encode()) as copy:
                copy.set_types(types)
                write = copy.write_row
                for row in rows:
                    write(row)
        except (AttributeError, TypeError, ValueError, struct.error) as error:
            # The value was meant for another type than the column has now.
            raise SchemaChanged(f"a column of {table} has another type: {error}") from error

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head, tail = self._dialect.insert_head(table, columns), self._dialect.upsert_tail(keys, columns)
        self._insert(head, tail, len(columns), last_of_each_key(keys, columns, rows))

    def is_stale(self) -> bool:
        return self._handle.has_input()

    def abort(self) -> None:
        self._handle.shut_down()

    def close(self) -> None:
        try:
            self._connection.close()
        finally:
            self._handle.close()

    def _insert(self, head: str, tail: str, width: int, rows: Sequence[Sequence[object]]) -> None:
        one = f"({', '.join(['%s'] * width)})"
        head, tail = head.replace("%", "%%"), tail.replace("%", "%%")
        with self._connection.cursor() as cursor:
            for some in chunks(rows, min(_ROWS_A_STATEMENT, _PARAMETERS // width)):
                sql = head + ", ".join([one] * len(some)) + tail
                cursor.execute(sql.encode(), list(chain.from_iterable(some)))

    def _types_of(self, table: str, columns: Sequence[str]) -> list[int]:
        key = (table, *columns)
        if key not in self._types:
            named = f"SELECT {self._dialect.listed(columns)} FROM {self._dialect.quoted(table)} LIMIT 0"
            with self._connection.cursor() as cursor:
                cursor.execute(named.encode())
                self._types[key] = [column.type_code for column in cursor.description or ()]
        return self._types[key]


class PostgreSqlDialect(Dialect):
    name = "PostgreSQL"
    blob = "BYTEA"
    long_text = "TEXT"
    auto_id = "BIGINT GENERATED BY DEFAULT AS IDENTITY"
    now_us = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    find_table = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false)) AND table_name = ?"
    )
    find_column = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = ANY (current_schemas(false))"
        " AND table_name = ? AND column_name = ?"
    )
    for_update = " FOR UPDATE"
    takes_writes = "SELECT current_setting('transaction_read_only') = 'off'"
    max_identifier = 63
    has_ranges = True
    driver_errors = (psycopg.Error, OSError)

    def varchar(self, length: int) -> str:
        return f'VARCHAR({length}) COLLATE "C"'

    def key_bytes(self, length: int) -> str:
        return "BYTEA"

    def connect(
        self, address: DatabaseAddress, timeout_ms: int, connect_ms: int, on_abort: OnAbort
    ) -> PostgreSqlSession:
        settings = {
            "default_transaction_isolation": "read\\ committed",
            "lock_timeout": max(1, timeout_ms // 3),
            "idle_in_transaction_session_timeout": timeout_ms,
            "client_min_messages": "warning",
        }
        text = make_conninfo(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            dbname=address.database,
            client_encoding="utf8",
            application_name="penstock",
            # libpq takes no less than two seconds.
            connect_timeout=max(2, connect_ms // 1000),
            options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
            **address.options,
        )
        connection: psycopg.Connection[Row] = psycopg.connect(text)
        return PostgreSqlSession(connection)

    def error(self, error: Exception, address: DatabaseAddress) -> DatabaseError:
        said = f"{address}: {str(error).strip()}"
        state = getattr(error, "sqlstate", None)
        if state is not None:
            kinds = (kind for kind, states in _STATES.items() if state.startswith(states))
            return next(kinds, DatabaseError)(f"{said} ({state})")
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
            return DatabaseError(said)
        return next((kind for pattern, kind in _AT_CONNECT.items() if pattern.search(said)), Unreachable)(said)

    def _create_last_range(self, table: str) -> list[str]:
        return [f"CREATE TABLE IF NOT EXISTS {self._last_range(table)} PARTITION OF {self.quoted(table)} DEFAULT"]

    def _last_range(self, table: str) -> str:
        return self.quoted(self.shortened(f"{table}$max"))

    def ranges_of(self, table: str, execute: Callable[..., list[Row]]) -> list[TableRange]:
        found = execute(
            "SELECT child.relname, pg_get_expr(child.relpartbound, child.oid)"
            " FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid WHERE inhparent = to_regclass(?)",
            self.quoted(table),
        )
        ends = [(name, _RANGE_END.search(bounds)) for name, bounds in found]
        ranges = [TableRange(name, None if end is None else int(end[1])) for name, end in ends]
        return sorted(ranges, key=lambda each: (each.end_id is None, each.end_id))

    def add_range(self, table: str, start_id: int | None, end_id: int) -> list[str]:
        made = self.quoted(self.shortened(f"{table}$p{start_id or 0}"))
        last = self._last_range(table)
        start = "MINVALUE" if start_id is None else str(start_id)
        return [
            f"CREATE TABLE {made} (LIKE {self.quoted(table)} INCLUDING ALL)",
            # No session adds rows to the last range between here and the end of the transaction.
            f"LOCK TABLE {last} IN ACCESS EXCLUSIVE MODE",
            f"WITH moved AS (DELETE FROM {last} WHERE id < {end_id} RETURNING *)"
            f" INSERT INTO {made} SELECT * FROM moved",
            f"ALTER TABLE {self.quoted(table)} ATTACH PARTITION {made} FOR VALUES FROM ({start}) TO ({end_id})",
        ]

    def drop_ranges(self, table: str, names: Sequence[str]) -> list[str]:
        return [f"DROP TABLE {self.listed(names)}"]

    def _options(self, is_updated_often: bool) -> str:
        # Room in each page for the next versions of its rows, so that no index has to be touched.
        return " WITH (fillfactor = 20)" if is_updated_often else ""


@lru_cache(maxsize=512)
def _translated(sql: str, has_params: bool) -> bytes:
    if not has_params:
        return sql.encode()
    return "%s".join(piece.replace("%", "%%") for piece in pieces_of(sql)).encode()
