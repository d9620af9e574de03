"""The coordination engine of a cluster: the tree in ZooKeeper, below a node of its own (the chroot).

Rules:

- Every commit is one ZooKeeper transaction that begins with a put of the clock at the version the writer has seen,
  so commits are ordered by the clock, and a transaction that was decided on an older clock changes nothing.
- One commit of a connection at a time; another one's commit in between is found by the clock, and the commit is made
  again on the new clock unless the caller has said which clock it has seen.
- A commit whose answer was lost is never sent again: its outcome is unknown, and said to be.
- One watch, on the clock, tells of all commits; what it has to tell is in the clock's value.
- A leased node is an ephemeral one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

from penstock.background_loop import shielded
from penstock.clock import Clock
from penstock.cluster.coordination.commit_history import CLOCK, CommitHistory, changed_paths
from penstock.cluster.coordination.contract import (
    MAX_COMMIT_BYTES,
    Change,
    Check,
    ChildrenCallback,
    Create,
    Delete,
    Node,
    Put,
    Unsubscribe,
    WatchCallback,
    check_changes,
    check_path,
    commit_bytes,
    is_at_or_below,
)
from penstock.cluster.coordination.lease_renewals import LeaseRenewals
from penstock.cluster.coordination.watchers import ChildrenWatcher, PathWatchers
from penstock.cluster.coordination.zookeeper_session import RereadOnChange, WatchFired, ZooKeeperSession, ZooKeeperTls
from penstock.errors import ConflictError, CoordinationError

MAX_CHROOT_BYTES = 90
ATTEMPTS = 100
_CLOSE_S = 2.0
_CONFLICTS = {
    BadVersionError: "is at another version",
    NoNodeError: "or its parent does not exist",
    NodeExistsError: "already exists",
    NotEmptyError: "still has children",
    NoChildrenForEphemeralsError: "cannot be created: its parent is leased, and has no children",
}


class ZooKeeperCoordination:
    """One connection to a tree that many processes share."""

    def __init__(self, session: ZooKeeperSession, chroot: str) -> None:
        self._session = session
        self._chroot = chroot
        self._lock = asyncio.Lock()
        # The latest clock that this connection knows of; watchers have been told of everything up to it.
        self._clock = 0
        self._history = CommitHistory()
        self._watchers = PathWatchers()
        self._rereading: set[RereadOnChange] = set()
        self._renewals = LeaseRenewals()
        self._noting: asyncio.Task[None] | None = None
        session.on_renewed(self._renewed)
        self._under_way: set[asyncio.Task[int]] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        servers: str,
        chroot: str,
        session_timeout_ms: int,
        clock: Clock,
        patience_ms: int = 10_000,
        tls: ZooKeeperTls | None = None,
    ) -> ZooKeeperCoordination:
        """Connect to "host:port,host:port" and make the chroot if it is missing; gives up after `patience_ms`."""
        check_path(chroot)
        if not 1 < len(chroot.encode()) <= MAX_CHROOT_BYTES:
            raise ValueError(f"a chroot is not the root, and has at most {MAX_CHROOT_BYTES} bytes: {chroot!r}")
        session = ZooKeeperSession(servers, session_timeout_ms, clock, tls)
        tree = cls(session, chroot)
        try:
            await session.start(patience_ms)
            await tree._begin()
        except BaseException:
            await tree.close()
            raise
        return tree

    async def get(self, path: str) -> Node | None:
        check_path(path)
        if path == "/" or is_at_or_below(path, CLOCK):
            self._check_open()
            return Node(b"", 0) if path == "/" else None
        return await self._get(path)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        self._check_open()
        return await self._list(path)

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        check_changes(changes)
        self._check_open()
        _check_size(changes)
        # What a commit leads to must not depend on whether its caller still waits. Hence a task of its own.
        task = asyncio.create_task(self._commit(changes, seen), name="penstock-zookeeper-commit")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await shielded(task)

    async def clock(self) -> int:
        return (await self._read_clock())[0]

    async def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        clock, history = await self._read_clock()
        return clock, changed_paths(history.after(version, clock))

    def watch(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        check_path(prefix)
        return self._watchers.add(prefix, callback)

    def watch_children(self, path: str, callback: ChildrenCallback) -> Unsubscribe:
        check_path(path)
        self._check_open()
        watcher = ChildrenWatcher(callback)

        async def read(fired: WatchFired) -> None:
            watcher.tell(await self._list(path, fired))

        rereading = RereadOnChange(self._session, f"penstock-zookeeper-children-{path}", read)
        self._rereading.add(rereading)

        def unsubscribe() -> None:
            self._rereading.discard(rereading)
            rereading.stop()

        return unsubscribe

    def lease_until_ms(self, seen: int | None = None) -> float:
        until_ms = self._session.lease_until_ms
        return until_ms if seen is None else min(until_ms, self._renewals.until_ms(seen))

    def on_session_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        return self._session.on_lost(callback)

    def stop_waiting(self) -> None:
        self._session.stop_waiting()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="penstock-zookeeper-close")
        # Shielded: the leases must be released even if the caller of close is cancelled.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_CLOSE_S)
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait([self._noting])
        for rereading in list(self._rereading):
            await rereading.close()
        await self._session.close()

    async def _begin(self) -> None:
        await self._session.ask(lambda client: client.ensure_path_async(self._chroot))
        clock, value = self._at(CLOCK), CommitHistory().encode()
        try:
            await self._session.ask(lambda client: client.create_async(clock, value))
        except NodeExistsError:
            pass
        self._clock, self._history = await self._read_clock()

        async def follow(fired: WatchFired) -> None:
            self._advance(*await self._read_clock(fired))

        self._rereading.add(RereadOnChange(self._session, "penstock-zookeeper-clock", follow))
        # There is a clock now.
        self._session.renew_soon()

    def _renewed(self, until_ms: float) -> None:
        if self._closing is None and (self._noting is None or self._noting.done()):
            self._noting = asyncio.create_task(self._note_renewal(until_ms), name="penstock-zookeeper-renewal")

    async def _note_renewal(self, until_ms: float) -> None:
        try:
            clock, history = await self._read_clock()
        except CoordinationError:
            return  # of a new tree, or the connection is lost: the next renewal is noted
        self._renewals.note(clock, until_ms)
        self._advance(clock, history)

    async def _get(self, path: str) -> Node | None:
        self._check_open()
        try:
            value, stat = await self._session.ask(lambda client: client.get_async(self._at(path)))
        except NoNodeError:
            return None
        return Node(value, stat.version)

    async def _list(self, path: str, fired: WatchFired | None = None) -> list[str]:
        try:
            names = await self._session.ask(lambda client: client.get_children_async(self._at(path), watch=fired))
        except NoNodeError:
            if fired is not None and await self._session.ask(lambda client: client.exists_async(self._at(path), fired)):
                # Made in between.
                return await self._list(path, fired)
            return []
        return sorted(name for name in names if path != "/" or f"/{name}" != CLOCK)

    async def _read_clock(self, fired: WatchFired | None = None) -> tuple[int, CommitHistory]:
        try:
            value, stat = await self._session.ask(lambda client: client.get_async(self._at(CLOCK), watch=fired))
        except NoNodeError:
            raise CoordinationError(f"node {CLOCK} is missing from the coordination tree") from None
        return stat.version, CommitHistory.decode(value)

    def _advance(self, clock: int, history: CommitHistory) -> None:
        """Takes note of a clock, which may be older than the one that is known, and tells of what is new in it."""
        if clock <= self._clock:
            return
        commits = history.after(self._clock, clock)
        self._clock, self._history = clock, history
        if commits is None:
            self._watchers.tell_anything()
            return
        for commit in commits:
            self._watchers.tell(commit)

    async def _commit(self, changes: Sequence[Change], seen: int | None) -> int:
        try:
            async with asyncio.timeout(self._session.timeout_s):
                await self._lock.acquire()
        except TimeoutError:
            raise CoordinationError(f"ZooKeeper at {self._session.servers} is slow; nothing was sent") from None
        try:
            return await self._commit_in_turn(changes, seen)
        finally:
            self._lock.release()

    async def _commit_in_turn(self, changes: Sequence[Change], seen: int | None) -> int:
        clock, history = self._clock, self._history
        if not changes or (seen is not None and seen != clock):
            clock, history = await self._read_clock()
        for _ in range(ATTEMPTS):
            if seen is not None and seen != clock:
                raise ConflictError(f"the clock is at version {clock}, not {seen}")
            if not changes:
                return clock
            after = history.followed_by(tuple(change.path for change in changes if not isinstance(change, Check)))
            if await self._write(changes, clock, after):
                self._advance(clock + 1, after)
                return clock + 1
            clock, history = await self._read_clock()
            self._advance(clock, history)
        raise ConflictError(f"the clock moved {ATTEMPTS} times while a commit was made")

    async def _write(self, changes: Sequence[Change], clock: int, history: CommitHistory) -> bool:
        """Whether the clock was still where it was said to be."""

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.set_data(self._at(CLOCK), history.encode(), clock)
            for change in changes:
                _add(transaction, self._at(change.path), change)
            return transaction.commit_async()

        _check_versions(changes)
        results = await self._session.ask(send, is_write=True)
        if isinstance(results[0], BadVersionError):
            return False
        for change, result in zip(changes, results[1:], strict=True):
            # The others of a transaction that failed are marked by these two.
            if not isinstance(result, KazooException) or isinstance(result, RolledBackError | RuntimeInconsistency):
                continue
            reason = _CONFLICTS.get(type(result))
            if reason is not None:
                raise ConflictError(f"{change.path} {reason}")
            raise CoordinationError(f"ZooKeeper refuses the change of {change.path}: {result!r}")
        if isinstance(results[0], KazooException):
            raise CoordinationError(f"ZooKeeper refuses a commit: {results[0]!r}")
        return True

    def _at(self, path: str) -> str:
        return self._chroot if path == "/" else self._chroot + path

    def _check_open(self) -> None:
        if self._closing is not None:
            raise CoordinationError(f"the connection to ZooKeeper at {self._session.servers} is closed")


def _add(transaction: Any, path: str, change: Change) -> None:
    match change:
        case Create():
            transaction.create(path, change.value, ephemeral=change.leased)
        case Put():
            transaction.set_data(path, change.value, change.version)
        case Delete():
            transaction.delete(path, change.version)
        case Check():
            transaction.check(path, change.version)


def _check_versions(changes: Sequence[Change]) -> None:
    for change in changes:
        # -1 would mean any version to ZooKeeper, and a larger number does not fit its field.
        if not isinstance(change, Create) and not 0 <= change.version < 2**31:
            raise ConflictError(f"{change.path} is at another version than {change.version}, which no node has")


def _check_size(changes: Sequence[Change]) -> None:
    for change in changes:
        if commit_bytes([change]) > MAX_COMMIT_BYTES:
            raise CoordinationError(
                f"the value of {change.path} is too large for ZooKeeper: {commit_bytes([change])} bytes with its path,"
                f" {MAX_COMMIT_BYTES} are allowed"
            )
    if commit_bytes(changes) > MAX_COMMIT_BYTES:
        raise CoordinationError(
            f"a commit of {len(changes)} changes is too large for ZooKeeper: {commit_bytes(changes)} bytes,"
            f" {MAX_COMMIT_BYTES} are allowed; make it in parts"
        )
