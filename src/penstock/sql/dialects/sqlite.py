"""SQLite by the standard library: one file, one writer at a time.

A transaction that writes begins as one (BEGIN IMMEDIATE): one that begins by reading could not become a writer any more
once another one has written. The writers of this process take turns by a lock of their own, because SQLite has waiting
writers sleep and look again. With `synchronous=FULL` a commit in the write-ahead log is durable.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from penstock.config.database_address import DatabaseAddress
from penstock.sql.dialects.dialect import Dialect, OnAbort, Row, Session, chunks, last_of_each_key
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

_ROWS_A_STATEMENT = 500
_RETRY_MS = 20

_CODES: dict[int, type[DatabaseError]] = {
    sqlite3.SQLITE_BUSY: Contended,
    sqlite3.SQLITE_LOCKED: Contended,
    sqlite3.SQLITE_INTERRUPT: Unreachable,
    sqlite3.SQLITE_CANTOPEN: Unreachable,
    sqlite3.SQLITE_READONLY: ReadOnly,
    sqlite3.SQLITE_FULL: NoRoom,
    sqlite3.SQLITE_TOOBIG: TooLarge,
    sqlite3.SQLITE_SCHEMA: SchemaChanged,
    sqlite3.SQLITE_MISMATCH: SchemaChanged,
    sqlite3.SQLITE_PERM: Denied,
    sqlite3.SQLITE_AUTH: Denied,
}
_DUPLICATES = (
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
)
# All of these are SQLITE_ERROR, and only the text tells.
_MISSING = ("no such table", "no such column", "has no column named")


class SqliteSession(Session):
    def __init__(self, connection: sqlite3.Connection, path: str, dialect: SqliteDialect, wait_s: float) -> None:
        self._connection = connection
        self._turn = dialect.turn
        self._wait_s = wait_s
        self._has_turn = False
        self._path = path
        self._file = _identity(path)
        self._parameters = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._dialect = dialect

    @property
    def driver_connection(self) -> Any:
        return self._connection

    def begin(self, *, is_read_only: bool) -> None:
        if is_read_only:
            self._connection.execute("BEGIN")
        else:
            self.begin_ddl()

    def begin_ddl(self) -> None:
        self._has_turn = self._turn.acquire(timeout=self._wait_s)
        if not self._has_turn:
            raise Contended(f"sqlite:///{self._path}: another transaction of this process is writing")
        self._connection.execute("BEGIN IMMEDIATE")

    def end_ddl(self) -> None:
        self.commit()

    def lock_ddl(self) -> None:
        """Locked since `begin_ddl`."""

    def commit(self) -> None:
        self._connection.execute("COMMIT")
        self._end_turn()

    def rollback(self) -> None:
        # After some failures SQLite has rolled back by itself.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._end_turn()

    def execute(self, sql: str, params: Sequence[object]) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def change(self, sql: str, params: Sequence[object]) -> int:
        return self._connection.execute(sql, params).rowcount

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._insert(self._dialect.insert_head(table, columns), "", len(columns), rows)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head, tail = self._dialect.insert_head(table, columns), self._dialect.upsert_tail(keys, columns)
        self._insert(head, tail, len(columns), last_of_each_key(keys, columns, rows))

    def is_stale(self) -> bool:
        """Whether another file has taken the place of the one that is open."""
        return _identity(self._path) != self._file

    def abort(self) -> None:
        self._connection.interrupt()

    def close(self) -> None:
        self._connection.close()
        self._end_turn()

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()

    def _insert(self, head: str, tail: str, width: int, rows: Sequence[Sequence[object]]) -> None:
        one = f"({', '.join('?' * width)})"
        for some in chunks(rows, max(1, min(_ROWS_A_STATEMENT, self._parameters // width))):
            sql = head + ", ".join([one] * len(some)) + tail
            self._connection.execute(sql, tuple(chain.from_iterable(some)))


class SqliteDialect(Dialect):
    name = "SQLite"
    # Spelled so, a primary key is the row's own id.
    big_integer = "INTEGER"
    small_integer = "INTEGER"
    blob = "BLOB"
    long_text = "TEXT"
    auto_id = "INTEGER"
    # To the millisecond: SQLite knows no more.
    now_us = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
    find_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    find_column = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
    for_update = ""
    # A file that cannot be written is found out by writing.
    takes_writes = "SELECT 1"
    max_identifier = 255
    driver_errors = (sqlite3.Error,)
    # A name in double quotes that it does not know would be taken for a text.
    _quote = "`"

    def __init__(self) -> None:
        self.turn = threading.Lock()
        """Of the one who writes."""

    def varchar(self, length: int) -> str:
        return "TEXT"

    def key_bytes(self, length: int) -> str:
        return "BLOB"

    def connect(self, address: DatabaseAddress, timeout_ms: int, connect_ms: int, on_abort: OnAbort) -> SqliteSession:
        wait_s = timeout_ms / 3000
        connection = sqlite3.connect(
            address.database,
            timeout=wait_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        try:
            _use_write_ahead_log(connection, connect_ms)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            return SqliteSession(connection, address.database, self, wait_s)
        except BaseException:
            connection.close()
            raise

    def error(self, error: Exception, address: DatabaseAddress) -> DatabaseError:
        said = f"{address}: {error}"
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return DatabaseError(said)
        if code in _DUPLICATES:
            return Duplicate(said)
        if code == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
            return NullRefused(said)
        if code == sqlite3.SQLITE_ERROR and any(text in said for text in _MISSING):
            return SchemaChanged(said)
        return _CODES.get(code & 0xFF, DatabaseError)(said)


def _use_write_ahead_log(connection: sqlite3.Connection, connect_ms: int) -> None:
    # Changing the mode does not wait for others who have the file open.
    for remaining_ms in range(connect_ms, -1, -_RETRY_MS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or remaining_ms < _RETRY_MS:
                raise
            time.sleep(_RETRY_MS / 1000)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
