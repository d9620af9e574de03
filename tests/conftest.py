"""Fixtures for tests that talk to a running broker, to ZooKeeper or to a database, and the order of the files."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import settings as hypothesis_settings
from xdist.remote import Producer

from penstock.gc_freeze import freezing
from support.broker_process import BrokerProcess
from support.durations import Recorder, recorded
from support.leftovers import MARK, marked
from support.programs import forking
from support.replicated import MariaDbPair, Pair, PostgresPair
from support.stores import DATABASES, SERVERS, DatabaseServer, MariaDbProcess, NewDatabase, PostgresProcess
from support.waiting import until
from support.worker_schedule import WorkerSchedule
from support.zookeeper import ZooKeeperProcess

BrokerFactory = Callable[..., BrokerProcess]
NewStorage = Callable[[], Mapping[str, str]]

LOG_FILES = "log-files"
STORAGES = (LOG_FILES, *DATABASES)

SHARED = {"groups.initial_rebalance_delay_ms": 20}
"""Settings of a broker that many tests share: their groups have few members, for which nobody has to wait."""

# A test that fails for being slow fails because of what else the machine does.
hypothesis_settings.register_profile("untimed", deadline=None)
hypothesis_settings.load_profile("untimed")

_BROKERS = pytest.StashKey[list[BrokerProcess]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--storage",
        choices=STORAGES,
        help="where brokers of tests keep their topics, if the test does not say: log files, or a database of a kind",
    )
    parser.addoption(
        "--record-durations", action="store_true", help="write what each file takes into tests/durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "log_files(why): not for brokers on a database")
    if config.getoption("--record-durations"):
        config.pluginmanager.register(Recorder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays until the end: the garbage collector need not look at it again and again."""
    with freezing():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("log_files")
    if mark is not None and storage_of(item) != LOG_FILES:
        pytest.skip(str(mark.args[0]))


def storage_of(item: pytest.Item) -> str:
    """Where the broker of a test keeps its topics."""
    params: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    chosen: str | None = params.get("broker_storage")
    return chosen or item.config.getoption("--storage") or LOG_FILES


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkerSchedule | None:
    return WorkerSchedule(config, log, recorded()) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> Iterator[None]:
    """Every process that tests start has ended when the last of them is over; set up first, and so asked last."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    with forking():
        yield
    try:
        until(lambda: not marked(mark), "every process that a test has started has ended")
    except AssertionError as error:
        raise AssertionError(f"{error}; there are {marked(mark)}") from None


@pytest.fixture(scope="session")
def broker_storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewStorage:
    """Gives the environment of a broker with storage of its own: what a database needs, or nothing for log files."""
    kind = getattr(request, "param", None) or request.config.getoption("--storage") or LOG_FILES
    fixtures = {"mariadb": "roomy_mariadb", "postgresql": "postgresql"}
    server: DatabaseServer | None = request.getfixturevalue(fixtures[kind]) if kind in fixtures else None

    def create() -> Mapping[str, str]:
        if kind == LOG_FILES:
            return {}
        if server is None:
            return {"PENSTOCK_SQL_URL": f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'penstock.db'}"}
        return {"PENSTOCK_SQL_URL": server.create_database(f"broker_{uuid.uuid4().hex[:12]}")}

    return create


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, broker_storage: NewStorage) -> Iterator[BrokerProcess]:
    """One broker for all tests that keep to topics of their own."""
    with running_broker(tmp_path_factory.mktemp("broker"), SHARED, broker_storage()) as process:
        yield process


@contextmanager
def running_broker(
    folder: Path, settings: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[BrokerProcess]:
    """A broker that has to be well and to stop in order when its tests are over."""
    process = BrokerProcess(folder, settings, env=env)
    try:
        process.start()
        yield process
        assert process.is_alive, f"the broker died:\n{process.log_tail}"
        assert process.stop() == 0
        assert_no_inner_errors(process)
    finally:
        process.kill()


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.kafka})


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One for all tests that keep to trees of their own and leave it running."""
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper") / "1")
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbProcess]:
    """One for all tests that keep to databases of their own and leave it running."""
    process = MariaDbProcess(tmp_path_factory.mktemp("mariadb") / "1")
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture(scope="session")
def roomy_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbProcess]:
    """One that takes messages of 30 MB: a statement has two characters for each byte."""
    process = MariaDbProcess(tmp_path_factory.mktemp("mariadb") / "1", options=["--max-allowed-packet=64M"])
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresProcess]:
    """One for all tests that keep to databases of their own and leave it running."""
    process = PostgresProcess()
    try:
        yield process.start()
    finally:
        process.remove()


@pytest.fixture(scope="module", params=SERVERS)
def server_to_break(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DatabaseServer]:
    if request.param == "mariadb":
        mariadb = MariaDbProcess(tmp_path_factory.mktemp("mariadb") / "1")
        try:
            yield mariadb.start()
        finally:
            mariadb.kill()
    else:
        postgresql = PostgresProcess()
        try:
            yield postgresql.start()
        finally:
            postgresql.remove()


@pytest.fixture
def own_server(server_to_break: DatabaseServer) -> Iterator[DatabaseServer]:
    """One that the test may pause, stop and kill."""
    yield server_to_break
    server_to_break.kill()
    server_to_break.start()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever starts Spark in this file, it is quick to start."""
    from support.class_archive import quick_spark

    with quick_spark(tmp_path_factory.mktemp("java")):
        yield


@pytest.fixture(scope="module")
def _pairs() -> Iterator[dict[str, Pair]]:
    """Of each kind the one that is used."""
    pairs: dict[str, Pair] = {}
    yield pairs
    for pair in pairs.values():
        pair.kill()


@pytest.fixture
def new_pair(_pairs: dict[str, Pair], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Pair]]:
    """Gives a server of a kind and its replica, which the test may pause, stop, kill and promote."""
    used: list[Pair] = []

    def give(kind: str) -> Pair:
        for other in _pairs.keys() - {kind}:
            _pairs.pop(other).kill()
        if kind not in _pairs:
            made = MariaDbPair(tmp_path_factory.mktemp("pair")) if kind == "mariadb" else PostgresPair()
            _pairs[kind] = made
            made.start()
        used.append(_pairs[kind])
        return used[-1]

    yield give
    for kind, pair in list(_pairs.items()):
        if pair.is_promoted:
            _pairs.pop(kind).kill()
        elif pair in used:
            pair.restart()


@pytest.fixture
def replicated(new_pair: Callable[[str], Pair]) -> MariaDbPair:
    pair = new_pair("mariadb")
    assert isinstance(pair, MariaDbPair)
    return pair


@pytest.fixture(scope="module", params=SERVERS)
def pair_kind(request: pytest.FixtureRequest) -> str:
    """Of a module: all tests with one kind come before those with the other."""
    kind: str = request.param
    return kind


@pytest.fixture
def any_pair(pair_kind: str, new_pair: Callable[[str], Pair]) -> Pair:
    return new_pair(pair_kind)


@pytest.fixture
def new_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewDatabase]:
    """Gives the address of a new, empty database of a kind; it is dropped after the test."""
    made: list[tuple[DatabaseServer, str]] = []

    def create(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'penstock.db'}"
        server: DatabaseServer = request.getfixturevalue(kind)
        made.append((server, f"test_{uuid.uuid4().hex[:12]}"))
        return server.create_database(made[-1][1])

    yield create
    for server, name in made:
        server.drop_database(name)


@pytest.fixture
def new_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, broker_storage: NewStorage
) -> Iterator[BrokerFactory]:
    """Starts brokers of the test's own, with the settings it wants; they end with the test, however it ends."""
    started: list[BrokerProcess] = []
    request.node.stash[_BROKERS] = started

    def start(settings: Mapping[str, object] | None = None, options: Sequence[str] = ()) -> BrokerProcess:
        process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings, options, broker_storage())
        started.append(process)
        return process.start()

    try:
        yield start
        for process in started:
            if process.is_alive:
                assert process.stop() == 0
            assert_no_inner_errors(process)
    finally:
        for process in started:
            process.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the topic does not exist."""
    named = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:80].strip("-")
    return f"{named}-{uuid.uuid4().hex[:8]}"


def assert_no_inner_errors(process: BrokerProcess) -> None:
    """Whatever clients did, the broker must have expected it."""
    assert "Traceback" not in process.log, process.log_tail


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """A failed test shows what its broker has logged."""
    report = yield
    if report.failed:
        shared = getattr(item, "funcargs", {}).get("broker")
        for process in [*([shared] if isinstance(shared, BrokerProcess) else []), *item.stash.get(_BROKERS, [])]:
            report.sections.append((f"log of the broker at {process.kafka}", process.log_tail))
    return report
