"""What clients do while the queue is away: keep, drop or spill, and go on when it is back."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import penstock
from conftest import BrokerFactory
from penstock.brokerless.files.store import FileStore
from penstock.ids import TopicPartition
from support.forms import PARTITIONS, promised
from support.ports import free_ports
from support.receiving import Heard, running
from support.stores import DatabaseServer, MariaDbProcess, PostgresProcess, RedisProcess
from support.waiting import until

TOPIC = "orders"


class Outage:
    """A queue that a test takes away and brings back."""

    def __init__(self, address: str, take_away: Callable[[], object], bring_back: Callable[[], object]) -> None:
        self.address = address
        self.take_away = take_away
        self.bring_back = bring_back


@pytest.fixture
def form(request: pytest.FixtureRequest, tmp_path: Path, opened: ExitStack) -> Outage:
    makers = {
        "file": _file,
        "tcp": _tcp,
        "redis": _redis,
        "mariadb": _server,
        "postgresql": _server,
        "sqlite": _sqlite,
        "broker": _broker,
    }
    return makers[request.param](request, tmp_path, opened)


def _file(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    """Another process appends and does not end."""
    store = opened.enter_context(closing(FileStore(folder / "queue")))
    locks = opened.enter_context(ExitStack())

    def take_away() -> None:
        for number in range(store.topics.partitions(TOPIC)):
            locks.enter_context(store.appender(TopicPartition(TOPIC, number)).locked())

    return Outage(f"file://{folder}/queue?partitions={PARTITIONS}", take_away, locks.close)


def _tcp(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    serving = opened.enter_context(ExitStack())

    def serve() -> None:
        serving.enter_context(penstock.open(f"{address}?serve"))

    serve()
    return Outage(address, serving.close, serve)


def _redis(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    process = RedisProcess(folder / "redis").start()
    opened.callback(process.kill)
    return Outage(process.url, process.kill, process.start)


@pytest.fixture(scope="module")
def mariadb_of_outages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbProcess]:
    """Servers that these tests kill: no other test uses them."""
    server = MariaDbProcess(tmp_path_factory.mktemp("mariadb") / "server").start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def postgresql_of_outages() -> Iterator[PostgresProcess]:
    server = PostgresProcess().start()
    yield server
    server.remove()


def _server(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    kind = request.node.callspec.params["form"]
    server: DatabaseServer = request.getfixturevalue(f"{kind}_of_outages")
    address = server.create_database(f"test_{uuid.uuid4().hex[:12]}")
    return Outage(f"{address}?partitions={PARTITIONS}", server.kill, server.start)


def _sqlite(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    """Another process writes and does not end."""
    file = folder / "queue.db"

    def take_away() -> None:
        other.execute("BEGIN IMMEDIATE")

    other = opened.enter_context(closing(sqlite3.connect(file, isolation_level=None, timeout=30)))
    return Outage(f"sqlite:///{file}?partitions={PARTITIONS}", take_away, lambda: other.execute("ROLLBACK"))


def _broker(request: pytest.FixtureRequest, folder: Path, opened: ExitStack) -> Outage:
    new_broker: BrokerFactory = request.getfixturevalue("new_broker")
    process = new_broker()
    return Outage(f"kafka://{process.kafka}", process.kill, process.start)


@pytest.fixture
def heard(form: Outage) -> Iterator[Heard]:
    """What a consumer is given that was there before the outage, and stays."""
    heard = Heard()
    with penstock.open(form.address) as client:
        client.subscribe(TOPIC, heard, group="g")
        with running(client):
            client.send(TOPIC, b"before", key="k")
            heard.wait(1)
            yield heard


@promised("While the queue is away: bounded Keep, Drop, Spill", not_by=["memory"])
def test_kept_messages_arrive_when_the_queue_is_back(form: Outage, heard: Heard) -> None:
    with penstock.open(form.address) as client:
        client.send(TOPIC, b"connected", key="k")
        form.take_away()
        futures = [client.send_soon(TOPIC, f"{number}", key="k") for number in range(20)]
        until(lambda: client.counters.buffered == 20, "they are kept")
        form.bring_back()
        assert [future.result(90).topic for future in futures] == [TOPIC] * 20
        until(lambda: {f"{number}".encode() for number in range(20)} <= set(heard.values), "all arrive", 90)
    of_outage = [value for value in heard.values if value.isdigit()]
    assert of_outage == [f"{number}".encode() for number in range(20)]


@promised("While the queue is away: bounded Keep, Drop, Spill", not_by=["memory"])
def test_full_buffer_refuses_or_drops(form: Outage, heard: Heard) -> None:
    kept = penstock.Sending(when_away=penstock.Keep(messages=5), tries=1, try_timeout="5s")
    dropped = penstock.Sending(when_away=penstock.Drop(messages=5), tries=1, try_timeout="5s")
    with penstock.open(form.address, sending=kept) as keeping, penstock.open(form.address, sending=dropped) as dropping:
        for client in (keeping, dropping):
            client.send(TOPIC, b"connected")
        form.take_away()
        for client in (keeping, dropping):
            futures = [client.send_soon(TOPIC, f"{number}", key="k") for number in range(20)]
            errors = [future.exception(90) for future in futures]
            assert all(isinstance(error, penstock.SendError) for error in errors)
            assert sum(isinstance(error, penstock.BufferFullError) for error in errors) >= 14
        assert keeping.counters.failed == 20 and keeping.counters.dropped == 0
        assert dropping.counters.dropped == 20
        form.bring_back()
        until(lambda: _is_sent(keeping), "messages are taken again", 90)


@promised("While the queue is away: bounded Keep, Drop, Spill", not_by=["memory"])
def test_spilled_messages_arrive_when_the_queue_is_back(form: Outage, heard: Heard, tmp_path: Path) -> None:
    spilling = penstock.Sending(when_away=penstock.Spill(tmp_path / "spill"), tries=1, try_timeout="5s")
    with penstock.open(form.address, sending=spilling) as client:
        assert not client.send(TOPIC, b"connected", key="k").is_spilled
        form.take_away()
        receipts = [client.send_soon(TOPIC, f"{number}", key="k") for number in range(20)]
        assert all(future.result(90).is_spilled for future in receipts)
        assert client.counters.spilled == 20
        form.bring_back()
        until(lambda: {f"{number}".encode() for number in range(20)} <= set(heard.values), "all arrive", 90)


@promised("While the queue is away: bounded Keep, Drop, Spill", not_by=["memory"])
def test_calls_with_many_messages_are_kept_or_spilled(form: Outage, heard: Heard, tmp_path: Path) -> None:
    spilling = penstock.Sending(when_away=penstock.Spill(tmp_path / "spill"), tries=1, try_timeout="5s")
    kept, spilled = [f"{number}" for number in range(20)], [f"{number}" for number in range(100, 120)]
    with penstock.open(form.address) as keeper, penstock.open(form.address, sending=spilling) as spiller:
        keeper.send(TOPIC, b"connected", key="k")
        assert not any(receipt.is_spilled for receipt in spiller.send_many(TOPIC, [b"connected"] * 2, key="k"))
        form.take_away()
        future = keeper.send_many_soon(TOPIC, kept, key="k")
        until(lambda: keeper.counters.buffered == 20, "they are kept")
        assert all(receipt.is_spilled for receipt in spiller.send_many(TOPIC, spilled, key="k"))
        assert spiller.counters.spilled == 20
        form.bring_back()
        assert [receipt.topic for receipt in future.result(90)] == [TOPIC] * 20
        until(lambda: {value.encode() for value in kept + spilled} <= set(heard.values), "all arrive", 90)
    assert [value for value in heard.values if value.isdigit() and int(value) < 100] == [
        value.encode() for value in kept
    ]


def _is_sent(client: penstock.Client) -> bool:
    try:
        client.send(TOPIC, b"again", key="k")
    except penstock.SendError:
        return False
    return True
