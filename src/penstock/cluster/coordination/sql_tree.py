"""The coordination tree in tables: what is read and written inside one transaction.

    penstock_clock      one row a tree: its version, the last commits, and how often leases have vanished
    penstock_node       one row a node; `session` is set for a leased one
    penstock_session    one row a session, with the time at which it ends by the clock of the database, and how long it
                        lasts

Rules:

- Whatever changes nodes locks the clock's row first, so that commits have one order and see each other's nodes.
- A session is alive as long as its row is there. Any process may remove a row whose time is over, together with its
  leases; until then its owner can still renew it.
- No session ends later than it lasts. If one seems to, its owner renewed it before the clock was set back: any process
  lets it end after its length from now on, which a live owner does not notice at its next renewal.
- Nodes are found by a hash of their path, because a path may be longer than what can be a key.
- Several trees share the tables; each has a name, the namespace.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.cluster.coordination.commit_history import CommitHistory
from penstock.cluster.coordination.contract import Change, Check, Create, Delete, Node, Put, parent_of
from penstock.errors import ConflictError, CoordinationError
from penstock.sql.database import Connection
from penstock.sql.migrations import Component

MAX_NAMESPACE = 90
_NAMESPACE = re.compile(rf"[a-zA-Z0-9._/-]{{1,{MAX_NAMESPACE}}}")
_NODES, _CLOCKS, _SESSIONS = "penstock_node", "penstock_clock", "penstock_session"
_NODE_COLUMNS = ("id", "namespace", "parent", "path", "value", "version", "session")
_SESSION_ID_CHARS = 32
_IDS_A_QUERY = 500


class SessionLostError(CoordinationError):
    """The session that a leased node was to belong to has ended; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a poll has seen."""

    clock: int
    history: CommitHistory | None
    """None if the clock is where it was."""
    departures: int
    """How often leases have vanished so far."""
    expired: tuple[str, ...]
    """Sessions whose time is over."""
    has_overlong: bool
    """Whether sessions end later than they last: `shorten_sessions`."""
    now_us: int
    """The clock of the database."""


@dataclass(slots=True)
class _Held:
    """A node inside a commit; `value` is None as long as the commit has not written it."""

    version: int
    session: str | None
    value: bytes | None = None


class SqlTree:
    """Statements on one tree; every method takes a connection and runs in a thread."""

    def __init__(self, namespace: str) -> None:
        if _NAMESPACE.fullmatch(namespace) is None:
            raise ValueError(
                f"a namespace has 1 to {MAX_NAMESPACE} of a-z, A-Z, 0-9, '.', '_', '/' and '-': {namespace!r}"
            )
        self._namespace = namespace

    def create_clock(self, connection: Connection) -> None:
        connection.upsert(_CLOCKS, ["namespace"], ["namespace"], [(self._namespace,)])

    def read_clock(self, connection: Connection, *, is_locked: bool = False) -> tuple[int, CommitHistory]:
        end = connection.dialect.for_update if is_locked else ""
        rows = connection.execute(f"SELECT version, history FROM {_CLOCKS} WHERE namespace = ?{end}", self._namespace)
        if not rows:
            raise CoordinationError(f"the clock of the coordination tree {self._namespace} is missing")
        version, history = rows[0]
        return version, CommitHistory() if history is None else CommitHistory.decode(history)

    def get(self, connection: Connection, path: str) -> Node | None:
        rows = connection.execute(f"SELECT value, version FROM {_NODES} WHERE id = ?", self._id(path))
        return Node(*rows[0]) if rows else None

    def children(self, connection: Connection, path: str) -> list[str]:
        rows = connection.execute(f"SELECT path FROM {_NODES} WHERE parent = ?", self._id(path))
        return sorted(row[0].rpartition("/")[2] for row in rows)

    def look(self, connection: Connection, known: int) -> Look:
        now_us = connection.dialect.now_us
        rows = connection.execute(
            f"SELECT clocks.version, clocks.departures, {now_us}, sessions.id, sessions.ends_us FROM {_CLOCKS} clocks"
            f" LEFT JOIN {_SESSIONS} sessions ON sessions.namespace = clocks.namespace"
            f" AND (sessions.ends_us < {now_us} OR {self._is_overlong(connection)}) WHERE clocks.namespace = ?",
            self._namespace,
        )
        if not rows:
            raise CoordinationError(f"the clock of the coordination tree {self._namespace} is missing")
        clock, departures, now_us = rows[0][:3]
        found = [(session, ends_us) for *_, session, ends_us in rows if session is not None]
        expired = tuple(session for session, ends_us in found if ends_us <= now_us)
        has_overlong = len(expired) < len(found)
        if clock == known:
            return Look(clock, None, departures, expired, has_overlong, now_us)
        # It may have moved again.
        clock, history = self.read_clock(connection)
        return Look(clock, history, departures, expired, has_overlong, now_us)

    def begin_session(self, connection: Connection, session: str, lasts_ms: int) -> int:
        """The version of the clock."""
        connection.change(
            f"INSERT INTO {_SESSIONS} (id, namespace, lasts_us, ends_us)"
            f" VALUES (?, ?, ?, {connection.dialect.now_us} + ?)",
            session,
            self._namespace,
            lasts_ms * 1000,
            lasts_ms * 1000,
        )
        return self.read_clock(connection)[0]

    def renew_session(self, connection: Connection, session: str, lasts_ms: int) -> int | None:
        """The version of the clock; None if the session was not there any more."""
        now_us = connection.dialect.now_us
        sql = f"UPDATE {_SESSIONS} SET ends_us = {now_us} + ? WHERE id = ?"
        if connection.change(sql, lasts_ms * 1000, session) != 1:
            return None
        return self.read_clock(connection)[0]

    def shorten_sessions(self, connection: Connection) -> int:
        """Lets sessions that end later than they last end when they would if they were renewed now; how many."""
        return connection.change(
            f"UPDATE {_SESSIONS} SET ends_us = {connection.dialect.now_us} + lasts_us"
            f" WHERE namespace = ? AND {self._is_overlong(connection)}",
            self._namespace,
        )

    def end_session(self, connection: Connection, session: str) -> None:
        self.read_clock(connection, is_locked=True)
        if connection.change(f"DELETE FROM {_SESSIONS} WHERE id = ?", session):
            self._remove_leases(connection, [session])

    def end_expired_sessions(self, connection: Connection, sessions: Sequence[str]) -> None:
        """Those of them whose time is still over."""
        self.read_clock(connection, is_locked=True)
        self._end_expired_sessions(connection, sessions)

    def commit(
        self, connection: Connection, changes: Sequence[Change], seen: int | None, own: str, expired: Sequence[str]
    ) -> tuple[int, CommitHistory]:
        """The clock after the commit, and the history that belongs to it.

        `own` is the session of leases that it makes; sessions that were found to be `expired` are ended with it.
        """
        clock, history = self.read_clock(connection, is_locked=True)
        self._end_expired_sessions(connection, expired)
        if seen is not None and seen != clock:
            raise ConflictError(f"the clock is at version {clock}, not {seen}")
        if not changes:
            return clock, history
        if any(isinstance(change, Create) and change.leased for change in changes):
            self._check_session(connection, own)
        self._apply(connection, changes, own)
        history = history.followed_by(tuple(change.path for change in changes if not isinstance(change, Check)))
        connection.change(
            f"UPDATE {_CLOCKS} SET version = ?, history = ? WHERE namespace = ?",
            clock + 1,
            history.encode(),
            self._namespace,
        )
        return clock + 1, history

    def _apply(self, connection: Connection, changes: Sequence[Change], own: str) -> None:
        paths = {change.path for change in changes}
        found = self._held(connection, paths | {parent_of(path) for path in paths})
        children = self._child_counts(connection, {change.path for change in changes if isinstance(change, Delete)})
        after = _applied(changes, found, children, own)
        gone = [self._id(path) for path in found if path in paths and after.get(path) is None]
        for some in _pieces(gone):
            connection.change(f"DELETE FROM {_NODES} WHERE id IN ({_marks(some)})", *some)
        written = [
            (self._id(path), self._namespace, self._id(parent_of(path)), path, held.value, held.version, held.session)
            for path, held in after.items()
            if held is not None and held.value is not None
        ]
        connection.upsert(_NODES, ["id"], _NODE_COLUMNS, written)

    def _held(self, connection: Connection, paths: Iterable[str]) -> dict[str, _Held]:
        by_id = {self._id(path): path for path in paths}
        held = {}
        for some in _pieces(list(by_id)):
            rows = connection.execute(f"SELECT id, version, session FROM {_NODES} WHERE id IN ({_marks(some)})", *some)
            held.update({by_id[row[0]]: _Held(row[1], row[2]) for row in rows})
        return held

    def _child_counts(self, connection: Connection, paths: Iterable[str]) -> Counter[str]:
        by_id = {self._id(path): path for path in paths}
        counts: Counter[str] = Counter()
        for some in _pieces(list(by_id)):
            rows = connection.execute(
                f"SELECT parent, COUNT(*) FROM {_NODES} WHERE parent IN ({_marks(some)}) GROUP BY parent", *some
            )
            counts.update({by_id[row[0]]: row[1] for row in rows})
        return counts

    def _check_session(self, connection: Connection, own: str) -> None:
        # A broker that ends sessions has to lock the clock, and this transaction has locked it.
        if not connection.execute(f"SELECT id FROM {_SESSIONS} WHERE id = ?", own):
            raise SessionLostError("the session has ended; nothing was changed")

    def _end_expired_sessions(self, connection: Connection, sessions: Sequence[str]) -> None:
        sql = f"DELETE FROM {_SESSIONS} WHERE id = ? AND ends_us < {connection.dialect.now_us}"
        ended = [session for session in sessions if connection.change(sql, session)]
        if ended:
            self._remove_leases(connection, ended)

    def _is_overlong(self, connection: Connection) -> str:
        """Twice its length: it may have been renewed between two looks at the clock of one statement."""
        return f"(lasts_us > 0 AND ends_us > {connection.dialect.now_us} + 2 * lasts_us)"

    def _remove_leases(self, connection: Connection, sessions: Sequence[str]) -> None:
        for session in sessions:
            connection.change(f"DELETE FROM {_NODES} WHERE session = ?", session)
        connection.change(f"UPDATE {_CLOCKS} SET departures = departures + 1 WHERE namespace = ?", self._namespace)

    def _id(self, path: str) -> bytes:
        return hashlib.sha256(f"{self._namespace}\0{path}".encode()).digest()


def _create_tables(connection: Connection) -> None:
    """Version 1: what was made before there were versions, unless it is there."""
    dialect = connection.dialect
    name, hashed = f"{dialect.varchar(MAX_NAMESPACE)} NOT NULL", f"{dialect.key_bytes(32)} NOT NULL"
    number, session = f"{dialect.big_integer} NOT NULL", dialect.varchar(_SESSION_ID_CHARS)
    nodes = [
        ("id", hashed),
        ("namespace", name),
        ("parent", hashed),
        ("path", f"{dialect.long_text} NOT NULL"),
        ("value", f"{dialect.blob} NOT NULL"),
        ("version", number),
        ("session", session),
    ]
    clocks = [
        ("namespace", name),
        ("version", f"{number} DEFAULT 0"),
        ("departures", f"{number} DEFAULT 0"),
        ("history", dialect.blob),
    ]
    sessions = [("id", f"{session} NOT NULL"), ("namespace", name), ("ends_us", number)]
    for statement in (
        *dialect.create_table(_NODES, nodes, primary_key=["id"], indexes=["parent", "session"]),
        *dialect.create_table(_CLOCKS, clocks, primary_key=["namespace"], is_updated_often=True),
        *dialect.create_table(_SESSIONS, sessions, primary_key=["id"], indexes=["namespace"], is_updated_often=True),
    ):
        connection.execute(statement)


def _add_session_lengths(connection: Connection) -> None:
    """Version 2. Brokers of version 1 leave the length away."""
    dialect = connection.dialect
    if not connection.execute(dialect.find_column, _SESSIONS, "lasts_us"):
        connection.execute(f"ALTER TABLE {_SESSIONS} ADD COLUMN lasts_us {dialect.big_integer} NOT NULL DEFAULT 0")


COORDINATION = Component("coordination", (_create_tables, _add_session_lengths))
"""The tables of all trees in a database."""


def _applied(
    changes: Sequence[Change], found: dict[str, _Held], children: Counter[str], own: str
) -> dict[str, _Held | None]:
    """What the nodes are after these changes, one after the other; None for a node that is gone."""
    after: dict[str, _Held | None] = dict(found)
    for change in changes:
        path, held = change.path, after.get(change.path)
        if isinstance(change, Create):
            if held is not None:
                raise ConflictError(f"{path} already exists")
            _check_parent(path, after)
            after[path] = _Held(0, own if change.leased else None, change.value)
            children[parent_of(path)] += 1
            continue
        if held is None:
            raise ConflictError(f"{path} does not exist")
        if held.version != change.version:
            raise ConflictError(f"{path} is at version {held.version}, not {change.version}")
        if isinstance(change, Put):
            after[path] = _Held(held.version + 1, held.session, change.value)
        elif isinstance(change, Delete):
            if children[path]:
                raise ConflictError(f"{path} still has children")
            after[path] = None
            children[parent_of(path)] -= 1
    return after


def _check_parent(path: str, nodes: dict[str, _Held | None]) -> None:
    parent = parent_of(path)
    held = nodes.get(parent)
    if held is None and parent != "/":
        raise ConflictError(f"{path} cannot be created: {parent} does not exist")
    if held is not None and held.session is not None:
        raise ConflictError(f"{path} cannot be created: {parent} is leased, and has no children")


def _pieces(ids: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(ids), _IDS_A_QUERY):
        yield ids[start : start + _IDS_A_QUERY]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
