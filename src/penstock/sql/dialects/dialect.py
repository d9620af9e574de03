"""What a dialect says of its database, and what a session of its driver does.

Rules:

- Statements have `?` for parameters in every dialect; nothing inside of quotes is one. Values are None, int, float, str
  and `bytes`, never bytearray or memoryview.
- A session is used by one thread at a time; only `abort` comes from another one.
- A session raises what its driver raises (`Dialect.driver_errors`); `Dialect.error` says what that means.
"""

from __future__ import annotations

import hashlib
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.config.database_address import DatabaseAddress
from penstock.sql.errors import DatabaseError

Row = tuple[Any, ...]
OnAbort = Callable[[Callable[[], None]], None]
"""Takes a function that ends a connection attempt from another thread."""

_PLACEHOLDERS = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|(\?)""")
_HASH_DIGITS = 12


class TableRange(NamedTuple):
    """A part of a table that can be dropped: the rows with ids from the end of the range before it on."""

    name: str
    end_id: int | None
    """The first id behind it; None for the last range, which takes every id that no other one has."""


class Session(ABC):
    """One connection of a driver."""

    @property
    @abstractmethod
    def driver_connection(self) -> Any:
        """The driver's own connection, for applications that work in the same transaction."""

    @abstractmethod
    def begin(self, *, is_read_only: bool) -> None:
        """What only reads may see each statement's own state of the database."""

    def hold_snapshot(self) -> None:  # noqa: B027  (where every transaction reads from a snapshot)
        """Before the first statement: all that the transaction reads is of one moment."""

    @abstractmethod
    def begin_ddl(self) -> None:
        """Begin what `end_ddl` ends: a transaction, where the database has transactions of definitions."""

    @abstractmethod
    def end_ddl(self) -> None: ...

    @abstractmethod
    def lock_ddl(self) -> None:
        """Between `begin_ddl` and `end_ddl`: wait until no other client has locked definitions, and lock them until the
        end. Nothing has to be done where `begin_ddl` locks.
        """

    def limit_lock_wait(self) -> None:
        """Between `begin_ddl` and `end_ddl`: wait one second at most for a table lock. Other sessions queue behind this
        one meanwhile.
        """
        raise NotImplementedError(f"{type(self).__name__} has no ranges of tables")

    @abstractmethod
    def commit(self) -> None: ...

    def defer(self) -> None:  # noqa: B027  (nothing to gain where there is no network)
        """From here to the end of the transaction, changes and inserts may be sent together, with COMMIT at their end:
        one round trip. The first that fails ends the transaction; `change` gives 1, and `commit` raises SchemaChanged,
        too late, for one that has found no row.
        """

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def execute(self, sql: str, params: Sequence[object]) -> list[Row]: ...

    @abstractmethod
    def change(self, sql: str, params: Sequence[object]) -> int: ...

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
        """Insert rows that `Dialect.encoded_rows` gave."""

    @abstractmethod
    def upsert(
        self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None: ...

    @abstractmethod
    def is_stale(self) -> bool:
        """Whether the server has closed this connection while it was idle."""

    @abstractmethod
    def abort(self) -> None:
        """End, from another thread, whatever waits for the server."""

    @abstractmethod
    def close(self) -> None:
        """Never raises."""


class Dialect(ABC):
    """One kind of database."""

    name: str
    big_integer = "BIGINT"
    small_integer = "SMALLINT"
    blob: str
    long_text: str
    auto_id: str
    """The type of a primary key that the database counts itself."""
    now_us: str
    """An expression: the database's clock in microseconds since 1970, when it is evaluated."""
    find_table: str
    """A query that has a row if there is a table of the name that is its parameter."""
    find_column: str
    """The same for a column; parameters are the names of the table and of the column."""
    for_update: str
    """The end of a SELECT that locks its rows; empty where a write transaction locks everything anyway."""
    takes_writes: str
    """A query of one value: whether the server takes writes."""
    max_identifier: int
    has_ranges = False
    """Whether a table can consist of ranges of ids."""
    _quote = '"'
    driver_errors: tuple[type[Exception], ...]

    @abstractmethod
    def varchar(self, length: int) -> str:
        """A text of so many characters that compares by its bytes and can be indexed up to 700 characters."""

    @abstractmethod
    def key_bytes(self, length: int) -> str:
        """At most so many bytes, which can be a key."""

    @abstractmethod
    def connect(self, address: DatabaseAddress, timeout_ms: int, connect_ms: int, on_abort: OnAbort) -> Session:
        """Connect within `connect_ms`. `timeout_ms` is what a call usually has; lock waits end well before that."""

    @abstractmethod
    def error(self, error: Exception, address: DatabaseAddress) -> DatabaseError:
        """What an error of the driver means."""

    def has_lost_semi_sync(self, execute: Callable[[str], list[Row]]) -> bool:
        """Whether the server was told to commit only with a replica, and does so no longer."""
        return False

    @property
    def for_update_no_wait(self) -> str:
        """Like `for_update`, but who finds a row locked gets Contended at once."""
        return f"{self.for_update} NOWAIT" if self.for_update else ""

    def quoted(self, name: str) -> str:
        """A name as an identifier. A database might cut off what is too long, and then mean another table."""
        if not name or "\0" in name or len(name.encode()) > self.max_identifier:
            raise ValueError(f"{self.name} takes no identifier of {len(name.encode())} bytes: {name!r}")
        return f"{self._quote}{name.replace(self._quote, self._quote * 2)}{self._quote}"

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
        """The statements that make a table, with an index on each of `indexes`, unless it is there.

        `columns` are names and types. `is_updated_often`: few rows, written again and again. `has_ranges`: of ids; the
        table has only the last range at first.
        """
        lines = [f"{self.quoted(name)} {spelled}" for name, spelled in columns]
        lines.append(f"PRIMARY KEY ({self.listed(primary_key)})")
        options = f" PARTITION BY RANGE ({self.listed(primary_key)})" if has_ranges else self._options(is_updated_often)
        made = f"CREATE TABLE IF NOT EXISTS {self.quoted(table)} ({', '.join(lines)}){options}"
        last_range = self._create_last_range(table) if has_ranges else []
        return [made, *last_range, *(self._create_index(table, column) for column in indexes)]

    def ranges_of(self, table: str, execute: Callable[..., list[Row]]) -> list[TableRange]:
        """The ranges of a table, ascending; none if it has no ranges."""
        return []

    def add_range(self, table: str, start_id: int | None, end_id: int) -> list[str]:
        """Statements that put a range before the last one, and move rows of that one into it. `start_id` is where the
        range before it ends, None if there is none.
        """
        raise NotImplementedError(f"{self.name} has no ranges of tables")

    def drop_ranges(self, table: str, names: Sequence[str]) -> list[str]:
        """Statements that drop ranges with their rows."""
        raise NotImplementedError(f"{self.name} has no ranges of tables")

    def listed(self, names: Iterable[str]) -> str:
        """Names as identifiers, with commas between them."""
        return ", ".join(map(self.quoted, names))

    def encoded_rows(self, rows: Sequence[Sequence[object]]) -> Sequence[Any]:
        """Rows as a session inserts them: what can be done without a connection, and before a transaction."""
        return rows

    def insert_head(self, table: str, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self.quoted(table)} ({self.listed(columns)}) VALUES "

    def upsert_tail(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        """What follows the VALUES of an insert that replaces rows with the same keys."""
        others = [self.quoted(column) for column in columns if column not in keys]
        update = ", ".join(f"{column} = excluded.{column}" for column in others)
        return f" ON CONFLICT ({self.listed(keys)}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}"

    def _create_index(self, table: str, column: str) -> str:
        name = self.quoted(self.shortened(f"{table}_{column}"))
        return f"CREATE INDEX IF NOT EXISTS {name} ON {self.quoted(table)} ({self.quoted(column)})"

    def shortened(self, name: str) -> str:
        """A name that is not too long; if it was, with a hash of it at its end."""
        if len(name.encode()) <= self.max_identifier:
            return name
        return f"{name[:40]}$${hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]}"

    def _options(self, is_updated_often: bool) -> str:
        return ""

    def _create_last_range(self, table: str) -> list[str]:
        raise NotImplementedError(f"{self.name} has no ranges of tables")


class SocketHandle:
    """A socket of a driver, held by a descriptor of our own, so that it is never another connection's by mistake."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM)

    def shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Not connected any more.
            pass

    def has_input(self) -> bool:
        """Whether there is something to read, or the other side has closed."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._socket.close()


@lru_cache(maxsize=512)
def pieces_of(sql: str) -> tuple[str, ...]:
    """A statement, cut at its placeholders."""
    pieces, start = [], 0
    for match in _PLACEHOLDERS.finditer(sql):
        if match[1]:
            pieces.append(sql[start : match.start()])
            start = match.end()
    return (*pieces, sql[start:])


def chunks(rows: Sequence[Sequence[object]], size: int) -> Iterator[Sequence[Sequence[object]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def last_of_each_key(
    keys: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> list[Sequence[object]]:
    """One row a key, the last one: not every database replaces a row twice in one statement."""
    at = [columns.index(key) for key in keys]
    return list({tuple(row[index] for index in at): row for row in rows}.values())
