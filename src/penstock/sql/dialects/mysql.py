"""MySQL and MariaDB by PyMySQL.

Statements are written out here, with `x'…'` for bytes: the quickest way to insert many rows that needs no compiler.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from pymysql.converters import escape_string

from penstock.config.database_address import DatabaseAddress
from penstock.sql.dialects.dialect import (
    Dialect,
    OnAbort,
    Row,
    Session,
    SocketHandle,
    TableRange,
    last_of_each_key,
    pieces_of,
)
from penstock.sql.dialects.mysql_rows import RowConnection
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

_PRIMARY_SIDES = ("master", "source")
"""The names that versions have for it."""
_SEMI_SYNC_SETTINGS, _SEMI_SYNC_STATUS = (
    f"SHOW GLOBAL {what} WHERE Variable_name IN ({names})"
    for what, names in (
        ("VARIABLES", ", ".join(f"'rpl_semi_sync_{side}_enabled'" for side in _PRIMARY_SIDES)),
        ("STATUS", ", ".join(f"'Rpl_semi_sync_{side}_status'" for side in _PRIMARY_SIDES)),
    )
)
_STATEMENT_BYTES = 512 << 10
"""A statement of many rows is not longer than that. Servers take longer ones, but more slowly: with rows of 1 KiB,
statements of 4 MiB inserted about a fifth fewer rows a second into MariaDB."""
_PACKET_HEAD = 64
_LAST_RANGE = "pmax"
# The locks are those of the whole server.
_DDL_LOCK = "CONCAT('penstock.', LEFT(SHA2(DATABASE(), 256), 32))"

_CODES: dict[type[DatabaseError], frozenset[int]] = {
    # Out of connections, shutting down, killed, network errors as the server sees them, idle for too long.
    Unreachable: frozenset({1040, 1053, 1079, 1152, *range(1156, 1162), 1184, 1203, 1226, 1927, 4031}),
    # Lock wait, deadlock, changed meanwhile, NOWAIT, interrupted by KILL QUERY or a time limit of the server.
    Contended: frozenset({1020, 1205, 1213, 1317, 1969, 3024, 3572}),
    # --read-only, a read-only transaction, InnoDB in read-only mode.
    ReadOnly: frozenset({1290, 1792, 1836}),
    NoRoom: frozenset({1021, 1114}),
    # A packet, a row, a BLOB beside the size of the redo log.
    TooLarge: frozenset({1118, 1153, 1301}),
    # No database, table, column, default; the value does not fit the type.
    NullRefused: frozenset({1048}),
    SchemaChanged: frozenset({1049, 1051, 1054, 1136, 1146, 1264, 1265, 1292, 1364, 1366, 1406, 1932}),
    Denied: frozenset({1044, 1045, 1129, 1130, 1142, 1143, 1227, 1370, 1698, 1820, 1862}),
    Duplicate: frozenset({1022, 1062, 1586}),
}
_BY_CODE = {code: kind for kind, codes in _CODES.items() for code in codes}
# Errors of a file: the errno is in the text.
_FILE_CODES = frozenset({3, 1026, 1030})
_FULL = ("28", "122", "No space left", "Disk quota exceeded")


class MySqlSession(Session):
    def __init__(self, connection: Any, handle: SocketHandle, packet_bytes: int) -> None:
        self._connection = connection
        self._handle = handle
        self._packet_bytes = packet_bytes - _PACKET_HEAD
        self._dialect = MySqlDialect()
        self._deferred: list[tuple[bytes, bool]] | None = None
        """Statements that wait for COMMIT, and whether they have to find a row."""
        self._usual_idle_s: int | None = None
        """While definitions are locked: after how long the server closes the idle connection otherwise."""
        self._usual_lock_wait_s: int | None = None
        """While lock waits are limited: how long they may be otherwise."""

    @property
    def driver_connection(self) -> Any:
        return self._connection

    def begin(self, *, is_read_only: bool) -> None:
        """A transaction begins with its first statement."""

    def hold_snapshot(self) -> None:
        # It holds for the next transaction alone, which begins with the statement behind it.
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", ())

    def begin_ddl(self) -> None:
        self._connection.autocommit(True)

    def end_ddl(self) -> None:
        if self._usual_idle_s is not None:
            self.execute(f"SELECT RELEASE_LOCK({_DDL_LOCK})", ())
            self.execute(f"SET SESSION wait_timeout = {self._usual_idle_s}", ())
            self._usual_idle_s = None
        if self._usual_lock_wait_s is not None:
            self.execute(f"SET SESSION lock_wait_timeout = {self._usual_lock_wait_s}", ())
            self._usual_lock_wait_s = None
        self._connection.autocommit(False)

    def defer(self) -> None:
        self._deferred = []

    def lock_ddl(self) -> None:
        # The lock ends with the connection. So the server closes that soon if this process is stopped or gone.
        ((self._usual_idle_s,),) = self.execute("SELECT @@wait_timeout", ())
        self.execute("SET SESSION wait_timeout = @@lock_wait_timeout * 3", ())
        ((is_locked,),) = self.execute(f"SELECT GET_LOCK({_DDL_LOCK}, @@lock_wait_timeout)", ())
        if is_locked != 1:
            raise Contended("another client is changing the tables of this database; nothing was changed")

    def limit_lock_wait(self) -> None:
        ((self._usual_lock_wait_s,),) = self.execute("SELECT @@lock_wait_timeout", ())
        self.execute("SET SESSION lock_wait_timeout = 1", ())

    def commit(self) -> None:
        deferred, self._deferred = self._deferred, None
        if not deferred:
            self._connection.commit()
            return
        statements = [*(statement for statement, _ in deferred), b"COMMIT"]
        together = b";".join(statements)
        with self._connection.cursor() as cursor:
            counts: list[int] = []
            for sent in [together] if len(together) <= self._packet_bytes else statements:
                counts.append(cursor.execute(sent))
                while cursor.nextset():
                    counts.append(cursor.rowcount)
        if any(must_find and not count for (_, must_find), count in zip(deferred, counts, strict=False)):
            raise SchemaChanged("a row that was to be changed is missing")

    def rollback(self) -> None:
        self._deferred = None
        self._connection.rollback()

    def execute(self, sql: str, params: Sequence[object]) -> list[Row]:
        assert self._deferred is None, "nothing is read behind what is deferred"
        with self._connection.cursor() as cursor:
            cursor.execute(self._written(sql, params))
            return list(cursor.fetchall()) if cursor.description else []

    def change(self, sql: str, params: Sequence[object]) -> int:
        return self._send(self._written(sql, params), must_find=True)

    def _send(self, statement: bytes, *, must_find: bool = False) -> int:
        if self._deferred is not None:
            self._deferred.append((statement, must_find))
            return 1
        with self._connection.cursor() as cursor:
            count: int = cursor.execute(statement)
            return count

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[bytes]) -> None:
        self._insert(self._dialect.insert_head(table, columns).encode(), b"", rows)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head, tail = self._dialect.insert_head(table, columns), self._dialect.upsert_tail(keys, columns)
        encoded = self._dialect.encoded_rows(last_of_each_key(keys, columns, rows))
        self._insert(head.encode(), tail.encode(), encoded)

    def is_stale(self) -> bool:
        return self._handle.has_input()

    def abort(self) -> None:
        self._handle.shut_down()

    def close(self) -> None:
        try:
            self._connection.close()
        except (pymysql.Error, OSError):
            # The connection is closed all the same.
            pass
        finally:
            self._handle.close()

    def _written(self, sql: str, params: Sequence[object]) -> bytes:
        first, *others = pieces_of(sql)
        text = first + "".join(_literal(value) + piece for value, piece in zip(params, others, strict=True))
        return text.encode()

    def _insert(self, head: bytes, tail: bytes, rows: Sequence[bytes]) -> None:
        for some in self._statements(rows, len(head) + len(tail)):
            self._send(head + b",".join(some) + tail)

    def _statements(self, rows: Sequence[bytes], frame: int) -> Iterator[Sequence[bytes]]:
        """Rows in parts that each fit into one statement."""
        limit = min(self._packet_bytes, _STATEMENT_BYTES)
        start, size = 0, frame
        for at, row in enumerate(rows):
            if frame + len(row) > self._packet_bytes:
                raise TooLarge(
                    f"a row of {len(row)} bytes as a statement is longer than what the server takes"
                    f" (max_allowed_packet is {self._packet_bytes + _PACKET_HEAD})"
                )
            size += len(row) + 1
            if size > limit and at > start:
                yield rows[start:at]
                start, size = at, frame + len(row) + 1
        if start < len(rows):
            yield rows[start:]


def _literal(value: object) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is bytes:
        return f"x'{value.hex()}'"
    if value is None:
        return "NULL"
    if isinstance(value, str):
        # The session's sql_mode is ours: a backslash escapes.
        return f"'{escape_string(value)}'"
    if isinstance(value, int | float):
        return repr(value + 0)
    raise TypeError(f"no value for a database: {type(value).__name__}")


class MySqlDialect(Dialect):
    name = "MySQL"
    blob = "LONGBLOB"
    long_text = "LONGTEXT"
    auto_id = "BIGINT AUTO_INCREMENT"
    # The time zone of a session is UTC. SYSDATE is the time of evaluation, NOW that of the statement's begin.
    now_us = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"
    find_table = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"
    find_column = (
        "SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()"
        " AND table_name = ? AND column_name = ?"
    )
    for_update = " FOR UPDATE"
    # A number or a word, which differs between versions.
    takes_writes = "SELECT CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') AND @@global.innodb_read_only = 0"
    max_identifier = 64
    has_ranges = True
    driver_errors = (pymysql.Error, OSError)
    _quote = "`"

    def encoded_rows(self, rows: Sequence[Sequence[object]]) -> Sequence[bytes]:
        """Each as it stands in a statement."""
        return [f"({','.join([_literal(value) for value in row])})".encode() for row in rows]

    def varchar(self, length: int) -> str:
        return f"VARCHAR({length})"

    def key_bytes(self, length: int) -> str:
        return f"VARBINARY({length})"

    def connect(self, address: DatabaseAddress, timeout_ms: int, connect_ms: int, on_abort: OnAbort) -> MySqlSession:
        for name, path in address.options.items():
            if not os.access(path, os.R_OK):
                raise Denied(f"{address}: the file of {name} cannot be read: {path}")
        connected = socket.create_connection((address.host, address.port), connect_ms / 1000)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.settimeout(None)
        handle = SocketHandle(connected.fileno())
        try:
            on_abort(handle.shut_down)
            return _session(address, connected, handle, timeout_ms)
        except BaseException:
            connected.close()
            handle.close()
            raise

    def has_lost_semi_sync(self, execute: Callable[[str], list[Row]]) -> bool:
        found = [*execute(_SEMI_SYNC_SETTINGS), *execute(_SEMI_SYNC_STATUS)]
        said = {name.lower(): value for name, value in found}
        return any(
            said.get(f"rpl_semi_sync_{side}_enabled") == "ON" and said.get(f"rpl_semi_sync_{side}_status") == "OFF"
            for side in _PRIMARY_SIDES
        )

    def error(self, error: Exception, address: DatabaseAddress) -> DatabaseError:
        code = error.args[0] if error.args else None
        said = f"{address}: {error}"
        if isinstance(error, OSError) or not isinstance(code, int):
            # Not a code: PyMySQL says so of a conversation that has gone wrong.
            return Unreachable(said)
        if code == 0 or 2000 <= code < 3000:
            return Unreachable(said)
        if code in _FILE_CODES and any(sign in said for sign in _FULL):
            return NoRoom(said)
        return _BY_CODE.get(code, DatabaseError)(said)

    def upsert_tail(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        others = [self.quoted(column) for column in columns if column not in keys]
        update = ", ".join(f"{column} = VALUES({column})" for column in others)
        first = self.quoted(keys[0])
        return f" ON DUPLICATE KEY UPDATE {update or f'{first} = {first}'}"

    def create_table(
        self,
        table: str,
        columns: Sequence[tuple[str, str]],
        *,
        primary_key: Sequence[str],
        indexes: Sequence[str] = (),
        is_updated_often: bool = False,
        has_ranges: bool = False,
    ) -> list[str]:
        lines = [f"{self.quoted(name)} {spelled}" for name, spelled in columns]
        lines.append(f"PRIMARY KEY ({self.listed(primary_key)})")
        lines.extend(f"INDEX ({self.quoted(column)})" for column in indexes)
        return [
            f"CREATE TABLE IF NOT EXISTS {self.quoted(table)} ({', '.join(lines)})"
            " ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
            f"{f' PARTITION BY RANGE ({self.listed(primary_key)}) ({self._last_range()})' if has_ranges else ''}"
        ]

    def ranges_of(self, table: str, execute: Callable[..., list[Row]]) -> list[TableRange]:
        found = execute(
            "SELECT partition_name, partition_description FROM information_schema.partitions"
            " WHERE table_schema = DATABASE() AND table_name = ? AND partition_name IS NOT NULL"
            " ORDER BY partition_ordinal_position",
            table,
        )
        return [TableRange(name, None if end == "MAXVALUE" else int(end)) for name, end in found]

    def add_range(self, table: str, start_id: int | None, end_id: int) -> list[str]:
        added = f"PARTITION {self.quoted(f'p{start_id or 0}')} VALUES LESS THAN ({end_id})"
        return [
            f"ALTER TABLE {self.quoted(table)} REORGANIZE PARTITION {_LAST_RANGE} INTO ({added}, {self._last_range()})"
        ]

    def drop_ranges(self, table: str, names: Sequence[str]) -> list[str]:
        return [f"ALTER TABLE {self.quoted(table)} DROP PARTITION {self.listed(names)}"]

    def _last_range(self) -> str:
        return f"PARTITION {_LAST_RANGE} VALUES LESS THAN MAXVALUE"


def _session(address: DatabaseAddress, connected: socket.socket, handle: SocketHandle, timeout_ms: int) -> MySqlSession:
    connection = RowConnection(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database,
        charset="utf8mb4",
        client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
        autocommit=False,
        defer_connect=True,
        ssl_verify_identity=True if "ssl_ca" in address.options else None,
        **address.options,
    )
    try:
        connection.connect(connected)
    except RuntimeError as error:
        # The way of proving a password needs TLS or a library that is not installed.
        raise Denied(f"{address}: {error}; or give ssl_ca in the address") from error
    lock_wait_s = max(1, timeout_ms // 3000)
    idle_s = max(1, timeout_ms // 1000)
    idle = "idle_transaction_timeout" if "MariaDB" in connection.get_server_info() else "wait_timeout"
    with connection.cursor() as cursor:
        cursor.execute(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
            f" innodb_lock_wait_timeout = {lock_wait_s}, lock_wait_timeout = {lock_wait_s}, {idle} = {idle_s}"
        )
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SELECT @@max_allowed_packet")
        (packet_bytes,) = cursor.fetchone()
    connection.commit()
    return MySqlSession(connection, handle, packet_bytes)
