"""A process that uses a folder and is killed in the middle of it: `python folder_child.py FOLDER WORK KILL_AT`.

`KILL_AT` is the number of the change to a file or the database at which the process kills itself, as SIGKILL from
outside would: a write is made by half, everything else not at all. Without it the process goes on until it is killed,
and prints what was acknowledged.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.brokerless.files.store import FileStore
from penstock.brokerless.store import GroupMember, GroupOffsets, SendBatch, Sequenced
from penstock.ids import TopicPartition
from penstock.sdk.headers import DELAY
from penstock.sdk.ports import Outgoing

TOPIC = "orders"
FIRST, SECOND = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
GROUP = "g"


class _Changes:
    """Counts changes, and kills the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at
        self._pwrite, self._ftruncate = os.pwrite, os.ftruncate

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        if self._is_last():
            self._pwrite(fd, bytes(data)[: len(data) // 2], position)
            _die()
        return self._pwrite(fd, data, position)

    def ftruncate(self, fd: int, size: int) -> None:
        self.passed()
        self._ftruncate(fd, size)

    def passed(self) -> None:
        if self._is_last():
            _die()

    def _is_last(self) -> bool:
        self._left -= 1
        return self._left == 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(number: int) -> None:
    """Kill this process at a change to a file or at the beginning or end of a transaction."""
    changes = _Changes(number)

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if sql in ("begin immediate", "commit"):
                changes.passed()
            return super().execute(sql, parameters)

    connect = sqlite3.connect
    vars(os).update(pwrite=changes.pwrite, ftruncate=changes.ftruncate)
    vars(sqlite3)["connect"] = lambda *args, **options: connect(*args, factory=Connection, **options)


def transact(store: FileStore) -> None:
    """Messages for two partitions, a delayed one and an offset, in one transaction."""
    store.heartbeat(GROUP, GroupMember("child", frozenset({TOPIC})), 60_000)
    epoch = store.claim(GROUP, "child", [FIRST])[FIRST].epoch
    batches = [
        SendBatch(FIRST, [Outgoing(TOPIC, b"t1"), Outgoing(TOPIC, b"late", None, ((DELAY, b"1h"),))], Sequenced(1, 0)),
        SendBatch(SECOND, [Outgoing(TOPIC, b"t2")], Sequenced(1, 0)),
    ]
    store.commit_transaction(batches, GroupOffsets(GROUP, "child", {FIRST: 1}, {FIRST: epoch}), None)


def deliver(store: FileStore) -> None:
    """Whatever is due."""
    due = store.timers.due(1 << 48, 100)
    store.deliver(due)


def append(store: FileStore) -> None:
    for number in range(3):
        store.append(SendBatch(FIRST, [Outgoing(TOPIC, f"a{number}".encode())], Sequenced(1, number)))


def write_on(store: FileStore, name: str) -> None:
    """Numbered messages, until the process is killed; prints each number that was acknowledged."""
    number = 0
    while True:
        delay = ((DELAY, b"1ms"),) if number % 5 == 4 else ()
        value = f"{name}-{number}".encode()
        store.append(SendBatch(FIRST, [Outgoing(TOPIC, value, None, delay)], Sequenced(abs(hash(name)) >> 2, number)))
        print(number, flush=True)
        number += 1


def main(args: Sequence[str]) -> None:
    folder, work, *rest = args
    if work == "write-on":
        from penstock.brokerless.files.queue import open_folder

        write_on(open_folder(Path(folder)), rest[0])
    kill_at(int(rest[0]))
    store = FileStore(Path(folder))
    {"transact": transact, "deliver": deliver, "append": append}[work](store)


if __name__ == "__main__":
    main(sys.argv[1:])
