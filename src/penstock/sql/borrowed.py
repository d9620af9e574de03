"""An application's own connection, used inside its own transaction: PyMySQL, psycopg, sqlite3, or SQLAlchemy on these.

Nothing here begins, commits or rolls back. Rows are tuples, whatever the application has set for its cursors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from penstock.errors import PenstockError
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect, Row, chunks, last_of_each_key, pieces_of

T = TypeVar("T")

_ROWS_A_STATEMENT = 200


class NotBorrowableError(PenstockError):
    """The connection is of no driver that is known here, or has no transaction open; the text says which."""


class BorrowedConnection(Connection):
    """Statements on a connection that the application owns."""

    def __init__(self, connection: object) -> None:
        """Raises `NotBorrowableError`."""
        self._driver = _driver_connection(connection)
        self.dialect, self._new_cursor, self._mark = _kind(self._driver)
        self.is_deferred = False
        self.error = None

    @property
    def locks_by_update(self) -> bool:
        """Whether a SELECT cannot lock: the transaction may not even have begun."""
        return not self.dialect.for_update

    def execute(self, sql: str, *params: object) -> list[Row]:
        def run() -> list[Row]:
            cursor = self._run(sql, params)
            try:
                return list(cursor.fetchall()) if cursor.description else []
            finally:
                cursor.close()

        return self._told_apart(run)

    def change(self, sql: str, *params: object) -> int:
        def run() -> int:
            cursor = self._run(sql, params)
            try:
                return int(cursor.rowcount)
            finally:
                cursor.close()

        return self._told_apart(run)

    def defer(self) -> None:
        """Everything is sent at once: COMMIT is the application's."""

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._insert(self.dialect.insert_head(table, columns), "", len(columns), rows)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head, tail = self.dialect.insert_head(table, columns), self.dialect.upsert_tail(keys, columns)
        self._insert(head, tail, len(columns), last_of_each_key(keys, columns, rows))

    def _insert(self, head: str, tail: str, width: int, rows: Iterable[Sequence[object]]) -> None:
        one = f"({', '.join('?' * width)})"
        for some in chunks(list(rows), _ROWS_A_STATEMENT):
            self.change(head + ", ".join([one] * len(some)) + tail, *chain.from_iterable(some))

    def _run(self, sql: str, params: Sequence[object]) -> Any:
        cursor = self._new_cursor()
        cursor.execute(self._mark.join(pieces_of(sql)), params)
        return cursor

    def _told_apart(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except self.dialect.driver_errors as error:
            found = self.dialect.error(error, _HERE)
            self.error = self.error or found
            raise found from error


class _Here:
    def __str__(self) -> str:
        return "the application's connection"


_HERE: Any = _Here()


def _driver_connection(connection: Any) -> Any:
    """What SQLAlchemy's connections and sessions stand for; others are themselves."""
    if type(connection).__module__.startswith("sqlalchemy"):
        inner = connection.connection
        inner = inner() if callable(inner) else inner
        inner = getattr(inner, "connection", inner) if type(inner).__module__.startswith("sqlalchemy.engine") else inner
        return getattr(inner, "driver_connection", inner)
    return connection


def _kind(connection: Any) -> tuple[Dialect, Callable[[], Any], str]:
    """The dialect, how a cursor is made, and how its driver writes a parameter."""
    module = type(connection).__module__.partition(".")[0]
    if isinstance(connection, sqlite3.Connection):
        from penstock.sql.dialects.sqlite import SqliteDialect

        if connection.isolation_level is None and not connection.in_transaction:
            raise NotBorrowableError(_no_transaction("the sqlite3 connection"))
        return SqliteDialect(), lambda: _sqlite_cursor(connection), "?"
    if module == "pymysql":
        from pymysql.cursors import Cursor

        from penstock.sql.dialects.mysql import MySqlDialect

        if connection.get_autocommit():
            raise NotBorrowableError(_no_transaction("the PyMySQL connection"))
        return MySqlDialect(), lambda: connection.cursor(Cursor), "%s"
    if module == "psycopg":
        from psycopg.pq import TransactionStatus
        from psycopg.rows import tuple_row

        from penstock.sql.dialects.postgresql import PostgreSqlDialect

        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise NotBorrowableError(_no_transaction("the psycopg connection"))
        return PostgreSqlDialect(), lambda: connection.cursor(row_factory=tuple_row), "%s"
    raise NotBorrowableError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection of PyMySQL, psycopg, sqlite3"
        " or SQLAlchemy; nothing was sent"
    )


def _sqlite_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _no_transaction(what: str) -> str:
    return f"{what} commits by itself after each statement: begin a transaction first; nothing was sent"
