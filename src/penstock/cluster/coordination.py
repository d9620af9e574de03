"""The coordination tree: the contract that every engine keeps.

A small tree of versioned nodes, with the semantics of a ZooKeeper `multi`:

- a path is `/` followed by names joined with `/`; the root `/` always exists and is never written;
- a node is created at version 0 and each `Put` raises its version by one;
- `commit` is all or nothing, durable when it returns, and its changes take effect in the order given, so that
  a later change sees the earlier ones: a parent and its child can be created together;
- a change that finds something else than it expects (node there, node missing, other version, no parent,
  children left) raises `ConflictError`, and nothing has changed;
- any other failure raises `CoordinationError`; whether the commit took effect is then unknown, so read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

WatchCallback = Callable[[Sequence[str]], None]
Unsubscribe = Callable[[], None]


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


Change = Create | Put | Delete


class Coordination(Protocol):
    """One open connection to the tree."""

    async def get(self, path: str) -> Node | None:
        """The node at this path, or None."""
        ...

    async def children(self, path: str) -> list[str]:
        """The names (not the paths) of a node's children, sorted; none for a node that does not exist."""
        ...

    async def commit(self, *changes: Change) -> None:
        """Make all these changes or none of them."""
        ...

    def watch(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        """Call back, on the event loop, with the changed paths at or below `prefix` after each commit."""
        ...

    async def close(self) -> None:
        """Let go of the tree; a commit under way is finished first. Closing twice is allowed."""
        ...


def check_path(path: str) -> None:
    """Refuse a path that no engine could hold; this is a caller's bug, hence a ValueError."""
    if path == "/":
        return
    if not path.startswith("/") or "" in path[1:].split("/") or "\0" in path:
        raise ValueError(f"not a path of the coordination tree: {path!r}")


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path.rpartition("/")[0] or "/"


def is_at_or_below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix itself or lies in the tree under it."""
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")
