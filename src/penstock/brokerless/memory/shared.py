"""Stores of this process that clients share by name."""

from __future__ import annotations

import threading
from typing import ClassVar

from penstock.brokerless.memory.store import MemoryStore


class SharedMemoryStore(MemoryStore):
    """`memory://NAME`: every client of the process that opens the name has the same topics, until the last is closed.

    The one place where the SDK keeps something for the whole process: modules that know nothing of each other meet
    under a name, as they would at the address of a broker.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _stores: ClassVar[dict[str, SharedMemoryStore]] = {}

    def __init__(self, name: str, *, partitions: int, max_messages: int) -> None:
        super().__init__(partitions=partitions, max_messages=max_messages, address=f"memory://{name}")
        self._name = name
        self._clients = 0

    @classmethod
    def opened(cls, name: str, *, partitions: int, max_messages: int) -> SharedMemoryStore:
        """The store of a name; the options are those of who opens it first."""
        with cls._lock:
            store = cls._stores.get(name)
            if store is None:
                store = cls._stores[name] = cls(name, partitions=partitions, max_messages=max_messages)
            store._clients += 1
            return store

    def close(self) -> None:
        with self._lock:
            self._clients -= 1
            if self._clients > 0:
                return
            self._stores.pop(self._name, None)
        super().close()
