"""The embedded coordination engine: the whole tree in one SQLite file.

Rules:

- Every statement runs in one worker thread, so the event loop never waits for a disk.
- `journal_mode=DELETE` keeps one file when nothing is being written; `synchronous=EXTRA` is FULL plus a sync
  of the folder after the journal is unlinked, without which a power loss could bring the journal back and
  undo a commit that was already acknowledged.
- Each row carries a CRC of what it says, because SQLite does not notice a flipped bit inside a value.
- The clock is a row like the others, hidden from readers; a file without it is at version 0.
- Leased nodes are in a temporary table: it takes part in transactions, and is gone with the connection or the process.
- One process at a time: the lock on the data folder sees to that (`folder.py`), not this file.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from penstock.background_loop import shielded
from penstock.cluster.coordination.commit_history import CLOCK, CommitHistory, changed_paths
from penstock.cluster.coordination.contract import (
    Change,
    Check,
    ChildrenCallback,
    Create,
    Node,
    Put,
    Unsubscribe,
    WatchCallback,
    check_changes,
    check_path,
    is_at_or_below,
    parent_of,
)
from penstock.cluster.coordination.watchers import ChildrenWatcher, PathWatchers, Registry
from penstock.errors import ConflictError, CoordinationError

T = TypeVar("T")

# "PENS": marks the file as ours in SQLite's own header field for that purpose.
APPLICATION_ID = 0x50454E53
FORMAT = 1

_COLUMNS = """(
    path    TEXT PRIMARY KEY,
    parent  TEXT NOT NULL,
    value   BLOB NOT NULL,
    version INTEGER NOT NULL,
    crc     INTEGER NOT NULL
) WITHOUT ROWID"""

# What the two tables hold together.
_TREE = "(SELECT * FROM main.nodes UNION ALL SELECT * FROM temp.leases)"


class EmbeddedCoordination:
    """A coordination tree for one process, in one file."""

    def __init__(self, path: Path, connection: sqlite3.Connection, worker: ThreadPoolExecutor) -> None:
        self._path = path
        self._connection = connection
        self._worker = worker
        self._watchers = PathWatchers()
        self._children_watchers: Registry[tuple[str, ChildrenWatcher]] = Registry()
        self._closed = False

    @classmethod
    async def open(cls, path: Path, busy_timeout_ms: int = 5_000) -> Self:
        """Open the file, or create it; refuses a file that is damaged or not ours.

        `busy_timeout_ms` is how long to wait for another program (a backup, say) that has locked the file.
        """
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-coordination")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(worker, _open_file, path, busy_timeout_ms)
        except BaseException:
            worker.shutdown(wait=False)
            raise
        return cls(path, connection, worker)

    async def get(self, path: str) -> Node | None:
        check_path(path)
        if is_at_or_below(path, CLOCK):
            return None
        return await self._run(lambda: self._read(path))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._run(lambda: self._list(path))

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        check_changes(changes)
        changed = tuple(change.path for change in changes if not isinstance(change, Check))
        watched = {path for path, _ in self._children_watchers.entries()}.intersection(map(parent_of, changed))

        def tell(result: tuple[int, dict[str, list[str]]]) -> None:
            self._watchers.tell(changed)
            self._tell_children(result[1])

        def write() -> tuple[int, dict[str, list[str]]]:
            clock = self._write(changes, changed, seen)
            return clock, {path: self._list(path) for path in watched}

        return (await self._run(write, tell))[0]

    async def clock(self) -> int:
        return (await self._run(self._read_clock))[0]

    async def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        clock, history = await self._run(self._read_clock)
        return clock, changed_paths(history.after(version, clock))

    def watch(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        check_path(prefix)
        return self._watchers.add(prefix, callback)

    def watch_children(self, path: str, callback: ChildrenCallback) -> Unsubscribe:
        check_path(path)
        unsubscribe = self._children_watchers.add((path, ChildrenWatcher(callback)))
        self._start(lambda: {path: self._list(path)}, self._tell_children)
        return unsubscribe

    def lease_until_ms(self, seen: int | None = None) -> float:
        return math.inf

    def on_session_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        """Never called back: the session is this process."""
        return lambda: None

    def stop_waiting(self) -> None:
        """Never waits: the tree is a file."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closing = asyncio.get_running_loop().run_in_executor(self._worker, self._connection.close)
        try:
            # Shielded: the file must be closed even if the caller of close is cancelled.
            await asyncio.shield(closing)
        finally:
            self._worker.shutdown(wait=False)

    async def _run(self, call: Callable[[], T], tell: Callable[[T], None] | None = None) -> T:
        return await shielded(self._start(call, tell))

    def _start(self, call: Callable[[], T], tell: Callable[[T], None] | None) -> asyncio.Future[T]:
        if self._closed:
            raise CoordinationError(f"the coordination file {self._path} is closed")
        future = asyncio.get_running_loop().run_in_executor(self._worker, self._guarded, call)

        # A commit goes on in its thread when the caller is cancelled, so the future tells its watchers, not the caller.
        # Added before the shield's own callback: watchers hear first.
        def settled(done: asyncio.Future[T]) -> None:
            if not done.cancelled() and done.exception() is None and tell is not None:
                tell(done.result())

        future.add_done_callback(settled)
        return future

    def _tell_children(self, names_by_path: Mapping[str, list[str]]) -> None:
        for path, watcher in self._children_watchers.entries():
            if path in names_by_path:
                watcher.tell(names_by_path[path])

    # Below this line everything runs in the worker thread.

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except sqlite3.Error as error:
            raise CoordinationError(f"the coordination file {self._path} failed: {error}") from error

    def _read(self, path: str) -> Node | None:
        row = self._connection.execute(
            f"SELECT path, value, version, crc FROM {_TREE} WHERE path = ?", (path,)
        ).fetchone()
        if row is None:
            return Node(b"", 0) if path == "/" else None
        _check_row(self._path, row)
        return Node(row[1], row[2])

    def _read_clock(self) -> tuple[int, CommitHistory]:
        node = self._read(CLOCK)
        return (0, CommitHistory()) if node is None else (node.version, CommitHistory.decode(node.value))

    def _list(self, path: str) -> list[str]:
        rows = self._connection.execute(f"SELECT path FROM {_TREE} WHERE parent = ?", (path,)).fetchall()
        return sorted(row[0].rpartition("/")[2] for row in rows if row[0] != CLOCK)

    def _write(self, changes: Sequence[Change], changed: tuple[str, ...], seen: int | None) -> int:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            clock, history = self._read_clock()
            if seen is not None and seen != clock:
                raise ConflictError(f"the clock is at version {clock}, not {seen}")
            for change in changes:
                self._apply(change)
            if changes:
                clock += 1
                value = history.followed_by(changed).encode()
                self._connection.execute(
                    "INSERT OR REPLACE INTO main.nodes (path, parent, value, version, crc) VALUES (?, '/', ?, ?, ?)",
                    (CLOCK, value, clock, _crc(CLOCK, value, clock)),
                )
            self._connection.execute("COMMIT")
        except BaseException:
            # After some failures SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        return clock

    def _apply(self, change: Change) -> None:
        path = change.path
        found = self._version(path)
        if isinstance(change, Create):
            if found is not None:
                raise ConflictError(f"{path} already exists")
            self._insert(change)
            return
        if found is None:
            raise ConflictError(f"{path} does not exist")
        if found != change.version:
            raise ConflictError(f"{path} is at version {found}, not {change.version}")
        if isinstance(change, Check):
            return
        table = "temp.leases" if self._is_leased(path) else "main.nodes"
        if isinstance(change, Put):
            self._connection.execute(
                f"UPDATE {table} SET value = ?, version = ?, crc = ? WHERE path = ?",
                (change.value, found + 1, _crc(path, change.value, found + 1), path),
            )
            return
        if self._connection.execute(f"SELECT 1 FROM {_TREE} WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise ConflictError(f"{path} still has children")
        self._connection.execute(f"DELETE FROM {table} WHERE path = ?", (path,))

    def _insert(self, change: Create) -> None:
        path, parent = change.path, parent_of(change.path)
        if parent != "/" and self._version(parent) is None:
            raise ConflictError(f"{path} cannot be created: {parent} does not exist")
        if self._is_leased(parent):
            raise ConflictError(f"{path} cannot be created: {parent} is leased, and has no children")
        table = "temp.leases" if change.leased else "main.nodes"
        self._connection.execute(
            f"INSERT INTO {table} (path, parent, value, version, crc) VALUES (?, ?, ?, 0, ?)",
            (path, parent, change.value, _crc(path, change.value, 0)),
        )

    def _version(self, path: str) -> int | None:
        row = self._connection.execute(f"SELECT version FROM {_TREE} WHERE path = ?", (path,)).fetchone()
        return None if row is None else row[0]

    def _is_leased(self, path: str) -> bool:
        return self._connection.execute("SELECT 1 FROM temp.leases WHERE path = ?", (path,)).fetchone() is not None


def _open_file(path: Path, busy_timeout_ms: int) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_ms / 1000, isolation_level=None)
    except sqlite3.Error as error:
        raise CoordinationError(f"the coordination file {path} cannot be opened: {error}") from error
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA temp_store=MEMORY")
        if _pragma(connection, "schema_version") == 0:
            _create_schema(connection)
        else:
            _check_file(path, connection)
        connection.execute(f"CREATE TEMP TABLE leases {_COLUMNS}")
    except sqlite3.Error as error:
        connection.close()
        raise CoordinationError(f"the coordination file {path} is damaged or not one: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _create_schema(connection: sqlite3.Connection) -> None:
    # One transaction, so that a crash leaves an empty file (made again next time) and never half a schema.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"CREATE TABLE nodes {_COLUMNS}")
    connection.execute("CREATE INDEX nodes_by_parent ON nodes (parent)")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def _check_file(path: Path, connection: sqlite3.Connection) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise CoordinationError(f"{path} is a database of another program, not a coordination file")
    found = _pragma(connection, "user_version")
    if found > FORMAT:
        raise CoordinationError(f"the coordination file {path} has format {found}; this version knows {FORMAT}")
    verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if verdict != "ok":
        raise CoordinationError(f"the coordination file {path} is damaged: {verdict}")
    for row in connection.execute("SELECT path, value, version, crc FROM nodes"):
        _check_row(path, row)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _check_row(path: Path, row: tuple[str, bytes, int, int]) -> None:
    if _crc(row[0], row[1], row[2]) != row[3]:
        raise CoordinationError(f"the coordination file {path} is damaged: the checksum of {row[0]} is wrong")


def _crc(path: str, value: bytes, version: int) -> int:
    return zlib.crc32(value, zlib.crc32(f"{path}\0{version}\0".encode()))
