"""Subscribers to changes in the coordination tree; the same for every engine.

Callbacks are scheduled, not called: a watcher that raises must not keep the others from hearing, nor the commit from
coming to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from penstock.cluster.coordination.contract import ChildrenCallback, Unsubscribe, WatchCallback, is_at_or_below

C = TypeVar("C")


class Registry(Generic[C]):
    """Callbacks, each until it unsubscribes; unsubscribing twice is allowed."""

    def __init__(self) -> None:
        self._entries: dict[object, C] = {}

    def add(self, entry: C) -> Unsubscribe:
        key = object()
        self._entries[key] = entry

        def unsubscribe() -> None:
            self._entries.pop(key, None)

        return unsubscribe

    def entries(self) -> list[C]:
        return list(self._entries.values())


class PathWatchers:
    """The subscribers to commits."""

    def __init__(self) -> None:
        self._registry: Registry[tuple[str, WatchCallback]] = Registry()

    def add(self, prefix: str, callback: WatchCallback) -> Unsubscribe:
        return self._registry.add((prefix, callback))

    def tell(self, changed: Sequence[str]) -> None:
        """One commit has changed these paths."""
        loop = asyncio.get_running_loop()
        for prefix, callback in self._registry.entries():
            touched = [path for path in changed if is_at_or_below(path, prefix)]
            if touched:
                loop.call_soon(callback, touched)

    def tell_anything(self) -> None:
        """Anything may have changed."""
        loop = asyncio.get_running_loop()
        for prefix, callback in self._registry.entries():
            loop.call_soon(callback, [prefix])


class ChildrenWatcher:
    """One who hears which children a node has: at first, and whenever that has changed."""

    def __init__(self, callback: ChildrenCallback) -> None:
        self._callback = callback
        self._told: list[str] | None = None

    def tell(self, names: list[str]) -> None:
        if names != self._told:
            self._told = names
            asyncio.get_running_loop().call_soon(self._callback, names)
