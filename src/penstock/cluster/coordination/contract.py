"""The coordination tree: the contract that every engine keeps.

A small tree of versioned nodes, with the semantics of a ZooKeeper `multi`:

- a path is `/` followed by names joined with `/`; the root `/` always exists and is never written;
- a node is created at version 0 and each `Put` raises its version by one;
- `commit` is all or nothing, durable when it returns, and its changes take effect in the order given, so that
  a later change sees the earlier ones: a parent and its child can be created together;
- a change that finds something else than it expects (node there, node missing, other version, no parent,
  children left) raises `ConflictError`, and nothing has changed;
- any other failure raises `CoordinationError`; whether the commit took effect, or still will, is then unknown: read
  again, and decide again on the clock that was read.

The clock: every commit moves it by one, so that commits are totally ordered and a decision can be bound to all that it
was made on. A commit with `seen` conflicts if anything was committed after that version of the clock.

Leases: a leased node lives as long as the session of the connection that made it, and has no children. That a lease
has vanished is not a commit and moves no clock; `watch_children` tells. A session that is lost is followed by
another one by itself; its leases are not, they are for their owner to make again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.cluster.coordination.commit_history import CLOCK

WatchCallback = Callable[[Sequence[str]], None]
ChildrenCallback = Callable[[Sequence[str]], None]
Unsubscribe = Callable[[], None]

MAX_COMMIT_BYTES = 900_000
"""The largest commit that every engine takes: ZooKeeper refuses requests of 1 MB, and the clock needs its part."""

# Headers, the access list of a created node, and the chroot in front of its path.
_BYTES_PER_CHANGE = 160
# What ZooKeeper refuses in a path.
_NOT_IN_PATHS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


@dataclass(frozen=True, slots=True)
class Node:
    """What a path held when it was read."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node; expects that it does not exist and that its parent does."""

    path: str
    value: bytes
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace a node's value; expects exactly this version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node without children; expects exactly this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing; expects exactly this version."""

    path: str
    version: int


Change = Create | Put | Delete | Check


class Coordination(Protocol):
    """One open connection to the tree."""

    async def get(self, path: str) -> Node | None:
        """The node at this path, or None."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names (not the paths) of a node's children, sorted; none for a node that does not exist."""
        ...

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        """Make all these changes or none of them; gives the version that the clock has moved to.

        With `seen` only if nothing was committed after that version of the clock. Without changes nothing moves.
        """
        ...

    async def clock(self) -> int:
        """The version of the clock: the number of commits so far."""
        ...

    async def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        """The clock now, and the paths changed after that version of it; None if that is too long ago to say."""
        ...

    def watch(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        """Call back, on the event loop, with the changed paths at or below `prefix` after each commit by any process.

        With `[prefix]` itself when it cannot be said what has changed: read everything below it again.
        """
        ...

    def watch_children(self, path: str, callback: ChildrenCallback) -> Unsubscribe:
        """Call back, on the event loop, with the sorted names of a node's children: at first and after each change.

        Changes in quick succession may be told as one. A node that does not exist has no children.
        """
        ...

    def lease_until_ms(self, seen: int | None = None) -> float:
        """Until when, in monotonic time, this connection's session, and with it its leases, certainly holds.

        With `seen` only renewals count at which the clock had that version or an earlier one. So when a session's time
        has passed since a commit, the lease is over for every broker that has not read that commit.
        """
        ...

    def on_session_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, on the event loop, when the session is over and its leases are gone.

        `lease_until_ms` speaks of the next session only after that call.
        """
        ...

    def stop_waiting(self) -> None:
        """The broker is stopping and the tree is out of reach: what cannot be sent at once fails from now on."""
        ...

    async def close(self) -> None:
        """Let go of the tree and of all leases; a commit under way is finished first. Closing twice is allowed."""
        ...


def check_path(path: str) -> None:
    """Refuse a path that some engine could not hold; this is a caller's bug, hence a ValueError."""
    if path == "/":
        return
    names = path[1:].split("/")
    if not path.startswith("/") or not {"", ".", ".."}.isdisjoint(names) or _NOT_IN_PATHS.search(path):
        raise ValueError(f"not a path of the coordination tree: {path!r}")


def check_changes(changes: Iterable[Change]) -> None:
    """Refuse changes of paths that only the engine writes: the root and the clock."""
    for change in changes:
        check_path(change.path)
        if change.path == "/" or is_at_or_below(change.path, CLOCK):
            raise ValueError(f"{change.path} of the coordination tree is never written")


def commit_bytes(changes: Iterable[Change]) -> int:
    """What these changes count against `MAX_COMMIT_BYTES`."""
    return sum(_size_of(change) for change in changes)


def _size_of(change: Change) -> int:
    value = change.value if isinstance(change, Create | Put) else b""
    return len(change.path.encode()) + len(value) + _BYTES_PER_CHANGE


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path.rpartition("/")[0] or "/"


def is_at_or_below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix itself or lies in the tree under it."""
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")
