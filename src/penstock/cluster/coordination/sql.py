"""The coordination engine in a database: one tree that many processes share.

Rules:

- Every commit is one transaction that locks the clock's row, so commits are ordered by the clock.
- A commit whose answer was lost is never sent again: its outcome is unknown, and said to be. What was certainly not
  committed is tried again for a session's time.
- One poller reads the clock's row ten times a second and tells of all commits, and of leases that have vanished.
- Leases belong to sessions (`sql_session.py`). Sessions that a poller has found to be over are ended by it, or by the
  next commit if that comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.background_loop import shielded
from penstock.clock import Clock
from penstock.cluster.coordination.commit_history import CLOCK, CommitHistory, changed_paths
from penstock.cluster.coordination.contract import (
    Change,
    ChildrenCallback,
    Node,
    Unsubscribe,
    WatchCallback,
    check_changes,
    check_path,
    is_at_or_below,
)
from penstock.cluster.coordination.sql_session import SqlSession
from penstock.cluster.coordination.sql_tree import COORDINATION, SessionLostError, SqlTree
from penstock.cluster.coordination.watchers import ChildrenWatcher, PathWatchers, Registry
from penstock.config.database_address import DatabaseAddress
from penstock.errors import CoordinationError
from penstock.logs import fields
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, DatabaseError, Unreachable
from penstock.sql.migrations import migrate

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.1
_READS = 4
# Beside those that read: one that commits, one that polls, one that renews the session.
_CONNECTIONS = _READS + 3
_RETRY_S = 0.1
_CLOSE_MS = 2_000


class SqlCoordination:
    """One connection to the tree; in truth a few, one for each kind of work."""

    def __init__(
        self, database: Database, tree: SqlTree, session_timeout_ms: int, clock: Clock, poll_s: float = POLL_S
    ) -> None:
        self._poll_s = poll_s
        self._database = database
        self._tree = tree
        self._timeout_ms = session_timeout_ms
        self._time = clock
        self._session = SqlSession(database, tree, session_timeout_ms, clock)
        self._reads = asyncio.Semaphore(_READS)
        self._commits = asyncio.Lock()
        # The latest clock that this connection knows of; watchers have been told of everything up to it.
        self._clock = 0
        self._departures = -1
        # Sessions of others whose time is over.
        self._expired: tuple[str, ...] = ()
        self._watchers = PathWatchers()
        self._children_watchers: Registry[tuple[str, ChildrenWatcher]] = Registry()
        self._are_children_due = False
        self._due = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._waits = True
        self._under_way: set[asyncio.Task[int]] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        address: DatabaseAddress,
        namespace: str,
        session_timeout_ms: int,
        clock: Clock,
        patience_ms: int = 10_000,
        poll_s: float = POLL_S,
    ) -> SqlCoordination:
        """Connect, and make the tables and the tree if they are missing; gives up after `patience_ms`. Looks every
        `poll_s` for what others have committed.

        Trees of other namespaces in the same database are others' trees.
        """
        tree = SqlTree(namespace)
        database = await _opened(address, session_timeout_ms, clock, patience_ms)
        coordination = cls(database, tree, session_timeout_ms, clock, poll_s)
        try:
            await coordination._begin()
        except DatabaseError as error:
            await coordination.close()
            raise CoordinationError(f"the coordination tree cannot be opened: {error}") from error
        except BaseException:
            await coordination.close()
            raise
        return coordination

    async def get(self, path: str) -> Node | None:
        check_path(path)
        if path == "/" or is_at_or_below(path, CLOCK):
            self._check_open()
            return Node(b"", 0) if path == "/" else None
        return await self._read(lambda connection: self._tree.get(connection, path))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(lambda connection: self._tree.children(connection, path))

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        check_changes(changes)
        self._check_open()
        # What a commit leads to must not depend on whether its caller still waits. Hence a task of its own.
        task = asyncio.create_task(self._commit(changes, seen), name="penstock-sql-commit")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await shielded(task)

    async def clock(self) -> int:
        return (await self._read(self._tree.read_clock))[0]

    async def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        clock, history = await self._read(self._tree.read_clock)
        return clock, changed_paths(history.after(version, clock))

    def watch(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        check_path(prefix)
        return self._watchers.add(prefix, callback)

    def watch_children(self, path: str, callback: ChildrenCallback) -> Unsubscribe:
        check_path(path)
        self._check_open()
        unsubscribe = self._children_watchers.add((path, ChildrenWatcher(callback)))
        self._are_children_due = True
        self._due.set()
        return unsubscribe

    def lease_until_ms(self, seen: int | None = None) -> float:
        return self._session.lease_until_ms if seen is None else self._session.renewals.until_ms(seen)

    def on_session_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        return self._session.on_lost(callback)

    def stop_waiting(self) -> None:
        self._waits = False

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="penstock-sql-close")
        # Shielded: the leases must be released even if the caller of close is cancelled.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._waits = False
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_CLOSE_MS / 1000)
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        await self._session.close(_CLOSE_MS)
        try:
            async with asyncio.timeout(_CLOSE_MS / 1000):
                await self._database.close()
        except TimeoutError:
            log.warning("the database does not answer", extra=fields(database=str(self._database.address)))

    async def _begin(self) -> None:
        await migrate(self._database, COORDINATION)
        await self._database.run(self._tree.create_clock)
        await self._session.start()
        asked_ms = self._time.monotonic_ms()
        look = await self._run(lambda connection: self._tree.look(connection, 0))
        self._session.note_clock(look.now_us, asked_ms)
        self._clock = look.clock
        self._polling = asyncio.create_task(self._poll(), name="penstock-sql-poll")

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._reads:
            return await self._ask(work, is_read_only=True)

    async def _ask(self, work: Callable[[Connection], T], *, is_read_only: bool) -> T:
        """Tries for a session's time, as long as it is certain that nothing was committed."""
        until_ms = self._time.monotonic_ms() + self._timeout_ms
        while True:
            self._check_open(is_closing_allowed=not is_read_only)
            remaining_ms = max(1, int(until_ms - self._time.monotonic_ms()))
            try:
                result = await self._database.run(work, is_read_only=is_read_only, timeout_ms=remaining_ms)
                self._session.note_contact(True)
                return result
            except DatabaseError as error:
                if isinstance(error, Unreachable):
                    self._session.note_contact(False)
                if error.is_outcome_unknown and not is_read_only:
                    raise CoordinationError(f"the outcome of a commit is unknown: {error}") from error
                is_over = self._time.monotonic_ms() + _RETRY_S * 1000 >= until_ms
                if not isinstance(error, Unreachable | Contended) or not self._waits or is_over:
                    raise CoordinationError(f"the database failed, nothing was changed: {error}") from error
            await asyncio.sleep(_RETRY_S)

    async def _commit(self, changes: Sequence[Change], seen: int | None) -> int:
        async with self._commits:
            session, expired = self._session.id, self._expired
            try:
                clock, history = await self._ask(
                    lambda connection: self._tree.commit(connection, changes, seen, session, expired),
                    is_read_only=False,
                )
            except SessionLostError:
                self._session.look_after()
                raise
            self._advance(clock, history)
            return clock

    def _advance(self, clock: int, history: CommitHistory) -> None:
        """Takes note of a clock, which may be older than the one that is known, and tells of what is new in it."""
        if clock <= self._clock:
            return
        commits = history.after(self._clock, clock)
        self._clock = clock
        self._are_children_due = True
        self._due.set()
        if commits is None:
            self._watchers.tell_anything()
            return
        for commit in commits:
            self._watchers.tell(commit)

    async def _poll(self) -> None:
        is_reached = True
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            try:
                await self._look()
                is_reached = True
            except (DatabaseError, CoordinationError) as error:
                self._session.note_contact(not isinstance(error, Unreachable))
                if is_reached:
                    log.warning("cannot read the coordination tree, retrying", extra=fields(reason=str(error)))
                is_reached = False
                await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        known, asked_ms = self._clock, self._time.monotonic_ms()
        look = await self._run(lambda connection: self._tree.look(connection, known))
        self._session.note_contact(True)
        self._session.note_clock(look.now_us, asked_ms)
        if look.history is not None:
            self._advance(look.clock, look.history)
        if look.has_overlong:
            await self._shorten_sessions()
        # Of its own session this one hears when it renews it.
        others = tuple(session for session in look.expired if session != self._session.id)
        self._expired = others if self._session.may_end_others else ()
        if self._expired:
            await self._database.run(
                lambda connection: self._tree.end_expired_sessions(connection, others), timeout_ms=self._timeout_ms
            )
            # What that has done is seen by the next look.
            self._expired = ()
        if look.departures != self._departures:
            self._departures = look.departures
            self._are_children_due = True
        if self._are_children_due:
            self._are_children_due = False
            try:
                await self._tell_children()
            except BaseException:
                self._are_children_due = True
                raise

    async def _shorten_sessions(self) -> None:
        if await self._database.run(self._tree.shorten_sessions, timeout_ms=self._timeout_ms):
            log.warning(
                "the clock of the database was set back, letting sessions end by the new time",
                extra=fields(database=str(self._database.address)),
            )

    async def _tell_children(self) -> None:
        watched = {path for path, _ in self._children_watchers.entries()}
        names = await self._run(lambda connection: {path: self._tree.children(connection, path) for path in watched})
        for path, watcher in self._children_watchers.entries():
            if path in names:
                watcher.tell(names[path])

    async def _run(self, work: Callable[[Connection], T]) -> T:
        return await self._database.run(work, is_read_only=True, timeout_ms=self._timeout_ms)

    def _check_open(self, *, is_closing_allowed: bool = False) -> None:
        if self._closing is not None and not is_closing_allowed:
            raise CoordinationError(f"the connection to {self._database.address} is closed")


async def _opened(address: DatabaseAddress, timeout_ms: int, clock: Clock, patience_ms: int) -> Database:
    try:
        return await Database.open(
            address, connections=_CONNECTIONS, timeout_ms=timeout_ms, clock=clock, patience_ms=patience_ms
        )
    except DatabaseError as error:
        raise CoordinationError(f"the database cannot be used for coordination: {error}") from error
