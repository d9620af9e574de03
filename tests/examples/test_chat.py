"""The chat server of `examples/chat`, with a broker whose customer has MariaDB and nothing else."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.programs import dying_with_us, environment
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until

SERVER = Path(__file__).parents[2] / "examples" / "chat" / "server.py"
SETTINGS = {"groups.initial_rebalance_delay_ms": 20}
MESSAGES = 60
"""That each of two members says in each of two rooms, while the broker is killed twice."""
SENT = re.compile(r"\* sent as (\w+) (\d+)")


class Member:
    """Somebody with a connection: says lines, and keeps the lines that come."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.type(name)
        self.wait_for(f"* welcome, {name}: ")

    def type(self, line: str) -> None:
        self._socket.sendall(f"{line}\n".encode())

    def ask(self, line: str) -> str:
        """Type a command, and give its answer, which comes behind the answers to earlier ones."""
        before = len(self._answers)
        self.type(line)
        until(lambda: len(self._answers) > before, f"{self.name}: {line} is answered")
        return self._answers[before]

    def wait_for(self, start: str) -> None:
        until(lambda: any(line.startswith(start) for line in list(self.lines)), f"{self.name} sees {start}")

    def seen(self, room: str) -> list[tuple[int, str]]:
        """Number and text of the messages of a room, in the order in which they came."""
        shown = [line.split(" ", 2) for line in list(self.lines) if line.startswith(f"{room} ")]
        return [(int(number), text) for _, number, text in shown]

    def leave(self) -> list[str]:
        self.type("bye")
        self._thread.join(PATIENCE_S)
        self._socket.close()
        return self.lines

    @property
    def _answers(self) -> list[str]:
        return [line for line in self.lines if line.startswith("* ")]

    def _listen(self) -> None:
        with self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                self.lines.append(line.rstrip())


class Product:
    """All that runs at the customer's: a database, a broker on it, the chat server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.broker = BrokerProcess(folder / "broker", SETTINGS, options=["--sql", url])
        self.broker.start()
        self._errors = folder / "chat.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                dying_with_us([sys.executable, str(SERVER), url]),
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment({"BOOTSTRAP": self.broker.kafka, "LISTEN": "127.0.0.1:0"}),
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode()
        assert said.startswith("chat server at "), self._errors.read_text()
        self.port = int(said.rpartition(":")[2])

    def close(self) -> str:
        """What the chat server has complained of."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.broker.kill()
        return self._errors.read_text()


@pytest.fixture
def product(new_database: NewDatabase, tmp_path: Path) -> Iterator[Product]:
    with ExitStack() as held:
        made = Product(new_database("mariadb"), tmp_path)
        held.callback(made.close)
        yield made
        assert "Traceback" not in made.close()
        assert "Traceback" not in made.broker.log


def test_rooms_unread_messages_reminders_and_history(product: Product) -> None:
    alice, bob = Member(product.port, "alice"), Member(product.port, "bob")
    for member in (alice, bob):
        assert member.ask("join kitchen") == "* you are in kitchen"
    assert alice.ask("join office") == "* you are in office"
    assert bob.ask("say office hello") == "* you are not in office"
    assert alice.ask("say kitchen who has the key?") == "* sent as kitchen 1"
    bob.wait_for("kitchen 1 alice: who has the key?")
    alice.ask("say office nobody is here")
    bob.leave()
    assert alice.ask("remind kitchen 1s tea") == "* sent"
    assert alice.ask("remind kitchen soon tea").startswith("* delay")
    alice.wait_for("kitchen 3 alice wanted to be reminded: tea")
    alice.ask("say kitchen I have it")
    # What came while bob was away, and nothing of a room that he is not in; the reminder left a gap where it waited.
    bob = Member(product.port, "bob")
    bob.wait_for("kitchen 4 alice: I have it")
    assert "* welcome, bob: 2 unread" in bob.lines
    assert bob.seen("kitchen") == [(3, "alice wanted to be reminded: tea"), (4, "alice: I have it")]
    bob.ask("history kitchen")
    history = [(1, "alice: who has the key?"), (3, "alice wanted to be reminded: tea"), (4, "alice: I have it")]
    until(lambda: bob.seen("kitchen")[2:] == history, "bob sees the history")
    # Nothing is unread now, and a new member has seen nothing and missed nothing.
    bob.leave()
    assert "* welcome, bob: 0 unread" in Member(product.port, "bob").leave()
    assert "* welcome, carol: 0 unread" in Member(product.port, "carol").leave()


def test_a_broker_that_is_killed_loses_doubles_and_swaps_nothing(product: Product) -> None:
    rooms = ("kitchen", "office")
    alice, bob, carol, away = members = [Member(product.port, name) for name in ("alice", "bob", "carol", "away")]
    for member in members:
        for room in rooms:
            member.ask(f"join {room}")
    away.leave()
    for member in (alice, bob):
        for number in range(MESSAGES):
            for room in rooms:
                member.type(f"say {room} {number}")
    for part in (MESSAGES // 2, MESSAGES):
        _wait_for_all([alice], rooms[:1], part)
        product.broker.kill()
        # The history needs the database and nothing else.
        assert carol.ask("history kitchen") == "* the last messages of kitchen"
        product.broker.start()
    _wait_for_all([alice, bob], rooms, 2 * MESSAGES)
    until(lambda: len(_sent(alice, bob)) == 2 * len(rooms) * MESSAGES, "all are acknowledged")
    back = Member(product.port, "away")
    _wait_for_all([back], rooms, 2 * MESSAGES)
    assert f"* welcome, away: {2 * len(rooms) * MESSAGES} unread" in back.lines
    for room in rooms:
        expected = alice.seen(room)
        assert bob.seen(room) == back.seen(room) == expected
        numbers = [number for number, _ in expected]
        assert numbers == sorted(set(numbers))
        assert {(room, str(number)) for number in numbers} == {found for found in _sent(alice, bob) if found[0] == room}
        for member in (alice, bob):
            texts = [text for _, text in expected if text.startswith(f"{member.name}: ")]
            assert texts == [f"{member.name}: {number}" for number in range(MESSAGES)]


def _wait_for_all(members: Sequence[Member], rooms: Sequence[str], count: int) -> None:
    def is_so() -> bool:
        return all(len(member.seen(room)) >= count for member in members for room in rooms)

    until(is_so, f"{', '.join(member.name for member in members)} have seen {count} messages", 2 * PATIENCE_S)


def _sent(*members: Member) -> list[tuple[str, str]]:
    """Room and number of what was acknowledged."""
    found = (SENT.fullmatch(line) for member in members for line in list(member.lines))
    return [(match[1], match[2]) for match in found if match]
