"""Clients are killed and the database is restarted: what was acknowledged is handled, and handled once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import StoreAwayError
from penstock.sql.database import Connection
from support.programs import dying_with_us, environment
from support.stores import DatabaseServer
from support.waiting import until

MESSAGES = 400
PRODUCER = """
    import sys
    from penstock import direct

    url, name, count, acknowledged = sys.argv[1], sys.argv[2], int(sys.argv[3]), open(sys.argv[4], "a")
    with direct.Client(url, timeout="3s") as client:
        for number in range(count):
            client.send("ledger", f"{name} {number}", key=name)
            print(f"{name} {number}", file=acknowledged, flush=True)
"""
CONSUMER = """
    import sys
    from penstock import direct

    client = direct.Client(sys.argv[1], timeout="3s")

    @client.subscribe_in_transaction("ledger", group="bookkeeping", from_beginning=True)
    def book(message, transaction):
        mark = "?" if sys.argv[1].startswith("sqlite") else "%s"
        transaction.cursor().execute(f"INSERT INTO bookings (entry) VALUES ({mark})", (message.value.decode(),))

    client.run()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[dict[str, Path]]:
    written = {"producer": PRODUCER, "consumer": CONSUMER}
    for name, text in written.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    yield {name: tmp_path / f"{name}.py" for name in written}


class Crew:
    """Processes that are killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, program: Path, *args: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{program.stem}-{len(self._all)}.log").open("wb")
        command = dying_with_us([sys.executable, str(program), *args])
        self._all.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment()))
        return self._all[-1]

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.wait()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    made.close()


def test_nothing_is_lost_or_handled_twice(
    own_server: DatabaseServer, crew: Crew, programs: dict[str, Path], tmp_path: Path
) -> None:
    url = own_server.create_database("crashes")
    store = SqlStore(url)
    try:
        store.topics.create("ledger", 4)
        store.prepare_topic("ledger")
        store.thread.define("default", _create_table)
        acknowledged = tmp_path / "acknowledged"
        acknowledged.touch()
        producers = [
            crew.start(programs["producer"], url, name, str(MESSAGES), str(acknowledged)) for name in ("a", "b", "c")
        ]
        consumers = [crew.start(programs["consumer"], url) for _ in range(2)]
        until(lambda: len(_booked(store)) > 50, "the first messages are handled", 120)
        consumers[0].send_signal(signal.SIGKILL)
        producers[0].send_signal(signal.SIGKILL)
        crew.start(programs["consumer"], url)
        until(lambda: len(_booked(store)) > 200, "more messages are handled", 120)
        own_server.kill()
        own_server.start()
        for producer in producers[1:]:
            assert producer.wait(240) == 0
        told = acknowledged.read_text().splitlines()
        until(lambda: set(told) <= set(_booked(store)), "all that was acknowledged is handled", 120)
    finally:
        store.close()
    booked = _read(url)
    assert len(booked) == len(set(booked))
    for name in ("b", "c"):
        assert sum(entry.startswith(name) for entry in booked) == MESSAGES
    # Of the one that was killed there may be one more than it was told of.
    assert len(set(booked) - set(told)) <= 1


def _create_table(connection: Connection) -> None:
    connection.change("CREATE TABLE bookings (entry VARCHAR(50))")


def _booked(store: SqlStore) -> list[str]:
    try:
        return [entry for (entry,) in store.thread.read("default", lambda cn: cn.execute("SELECT entry FROM bookings"))]
    except StoreAwayError:
        return []  # the server was restarted


def _read(url: str) -> list[str]:
    store = SqlStore(url)
    try:
        return _booked(store)
    finally:
        store.close()
