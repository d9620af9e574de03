"""The SQLite file of a folder: its tables, and transactions on it.

One connection for all threads of a process, which take turns. No lock of a partition is waited for inside a
transaction: a thread that has a partition's lock may wait for the database, never the other way round.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.brokerless.store import StoreAwayError, StoreRefusedError

FORMAT = 1
BUSY_S = 5.0
"""How long a transaction waits for those of other processes."""

_LOOK_S = 0.02

_TABLES = """
create table if not exists topics (
    name text primary key, partitions integer not null, settings text not null
);
create table if not exists members (
    grp text, member text, topics text not null, session_ms integer not null, ends_ms integer not null,
    primary key (grp, member)
) without rowid;
create table if not exists claims (
    grp text, topic text, partition integer, member text, epoch integer not null default 0, committed integer,
    primary key (grp, topic, partition)
) without rowid;
create table if not exists timers (
    id integer primary key autoincrement, topic text not null, partition integer not null, due_ms integer not null,
    name blob, message blob not null
);
create index if not exists timers_by_due on timers (due_ms, id);
create index if not exists timers_by_topic on timers (topic, due_ms, id);
create unique index if not exists timers_by_name on timers (topic, partition, name) where name is not null;
create table if not exists sequences (
    topic text, partition integer, producer_id integer, first integer not null, offsets text not null,
    at_ms integer not null, primary key (topic, partition, producer_id)
) without rowid;
create index if not exists sequences_by_time on sequences (at_ms);
create table if not exists decided (
    id integer primary key autoincrement, topic text not null, partition integer not null,
    base_offset integer not null, batch blob not null
);
create index if not exists decided_by_partition on decided (topic, partition, id);
create table if not exists fences (transactional_id text primary key, epoch integer not null) without rowid;
create table if not exists leases (name text primary key, owner text not null, ends_ms integer not null) without rowid;
"""

Row = tuple[Any, ...]


class FolderDatabase:
    """The database of a folder that this process has open. Thread-safe."""

    def __init__(self, path: Path, *, is_synced: bool) -> None:
        """Open the database, and create it if it does not exist. Raises `StoreRefusedError` and `StoreAwayError`."""
        self._path = path
        self._mutex = threading.RLock()
        try:
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
        except sqlite3.Error as error:
            raise StoreRefusedError(f"could not open {path}: {error}") from None
        try:
            with self._translated():
                self._use_wal()
                self._connection.execute(f"pragma synchronous = {'full' if is_synced else 'normal'}")
                self._create()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that commits at the end of the block."""
        with self._mutex, self._translated():
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")

    def read(self, sql: str, *values: object) -> list[Row]:
        with self._mutex, self._translated():
            return self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        with self._mutex:
            self._connection.close()

    def _use_wal(self) -> None:
        """SQLite does not wait for others when the journal mode changes."""
        pause = threading.Event()
        for _ in range(int(BUSY_S / _LOOK_S)):
            try:
                self._connection.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                pause.wait(_LOOK_S)
            else:
                return
        raise StoreAwayError(f"{self._path} is locked by another process; it was not opened")

    def _create(self) -> None:
        version: int = self._connection.execute("pragma user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise StoreRefusedError(
                f"{self._path} has format {version}, this version of Penstock knows {FORMAT}; nothing was changed"
            )
        if version == 0:
            self._connection.executescript(f"begin immediate; {_TABLES} pragma user_version = {FORMAT}; commit;")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            # Locked, a full disk, an error of the disk: a later try may succeed.
            raise StoreAwayError(f"{self._path}: {error}") from None
        except sqlite3.DatabaseError as error:
            raise StoreRefusedError(f"{self._path}: {error}") from None
