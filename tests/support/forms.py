"""Queues of every form at an address, and what each of them promises.

A test of a promise is decorated with `@promised(…)` and runs once with each form that gives it. `docs/forms.md` has the
same promises as a table; a test compares the two.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol, Unpack

import pytest

import penstock
from penstock.brokerless.clients import OpenOptions
from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Database
from support import pausing
from support.ports import free_ports
from support.stores import DATABASES, NewDatabase, RedisProcess
from support.waiting import until

FORMS = ("memory", "file", "tcp", "redis", *DATABASES, "broker")
COLUMNS = {form: "database" if form in DATABASES else form for form in FORMS}
"""The columns of the table in `docs/forms.md`, in its order, by form."""
PROMISES: dict[str, frozenset[str]] = {}
"""Which forms give which promise; filled by `promised`."""
PARTITIONS = 4

Maker = Callable[[pytest.FixtureRequest, Path, ExitStack], str]


def promised(promise: str, *, not_by: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test with every form that gives a promise."""
    assert set(not_by) < set(FORMS), not_by
    forms = [form for form in FORMS if form not in not_by]
    assert PROMISES.setdefault(promise, frozenset(forms)) == frozenset(forms), promise
    return pytest.mark.parametrize("form", forms, indirect=True)


class Opened:
    """The queue of a test."""

    def __init__(self, name: str, address: str, stack: ExitStack) -> None:
        self.name = name
        self.address = address
        self._stack = stack

    def client(self, **options: Unpack[OpenOptions]) -> penstock.Client:
        """A client of its own; it is closed when the test is over."""
        client = penstock.open(self.address, **options)
        self._stack.callback(client.close, 5)
        return client

    def has_taken_in_delayed(self) -> bool:
        """Whether every delayed message that was sent is where it is delivered from. In a database one of the clients
        takes it in, a moment after it was sent.
        """
        return self.name not in DATABASES or asyncio.run(self._count("queue_inbox")) == 0

    async def _count(self, table: str) -> int:
        database = await Database.open(DatabaseAddress.parse(self.address.partition("?")[0]), connections=1)
        try:
            ((count,),) = await database.run(lambda cn: cn.execute(f"SELECT COUNT(*) FROM {table}"), is_read_only=True)
        finally:
            await database.close()
        return int(count)

    def child(self, work: str, *args: str) -> Child:
        """Another process that uses the queue; killed when the test is over, if it still runs."""
        child = Child([self.address, work, *args])
        self._stack.callback(child.kill)
        return child


class Child:
    """A process of `form_child.py`."""

    def __init__(self, args: Sequence[str]) -> None:
        self._address = args[0]
        program = Path(__file__).with_name("form_child.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *args], stdout=subprocess.PIPE, text=True, env=_child_environment()
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return line.rstrip("\n")

    def rest(self) -> list[str]:
        """What it has printed, once it has ended."""
        assert self._process.stdout is not None
        return [line.rstrip("\n") for line in self._process.stdout]

    def pause(self) -> None:
        """Not in a transaction on SQLite, which is one for all processes: nobody could write until it goes on."""
        until(self._is_paused, "the process is stopped outside of a transaction")

    def _is_paused(self) -> bool:
        pausing.pause(self._process.pid)
        if not self._address.startswith("sqlite:"):
            return True
        file = self._address.removeprefix("sqlite:///").partition("?")[0]
        try:
            with closing(sqlite3.connect(file, timeout=1)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.rollback()
            return True
        except sqlite3.OperationalError:
            self.resume()
            return False

    def resume(self) -> None:
        pausing.resume(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class _HasBroker(Protocol):
    kafka: str


def _memory(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
    address = f"memory://{folder.name}?partitions={PARTITIONS}"
    # The topics of a name live as long as a client has it open.
    stack.enter_context(penstock.open(address))
    return address


def _file(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
    return f"file://{folder}/queue?partitions={PARTITIONS}"


def _tcp(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    stack.enter_context(penstock.open(f"{address}?serve&partitions={PARTITIONS}"))
    return address


def _redis(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
    process: RedisProcess = request.getfixturevalue("redis_process")
    return f"{process.url}?prefix={folder.name.replace('_', '-')}&partitions={PARTITIONS}"


def _database(kind: str) -> Maker:
    def make(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
        new_database: NewDatabase = request.getfixturevalue("new_database")
        return f"{new_database(kind)}?partitions={PARTITIONS}"

    return make


def _broker(request: pytest.FixtureRequest, folder: Path, stack: ExitStack) -> str:
    process: _HasBroker = request.getfixturevalue("broker")
    return f"kafka://{process.kafka}"


MAKERS: dict[str, Maker] = {
    "memory": _memory,
    "file": _file,
    "tcp": _tcp,
    "redis": _redis,
    **{kind: _database(kind) for kind in DATABASES},
    "broker": _broker,
}


def _child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
