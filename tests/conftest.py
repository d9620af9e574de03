"""Fixtures for tests that talk to a running broker, or to ZooKeeper."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from support.broker_process import BrokerProcess
from support.zookeeper import ZooKeeperProcess

BrokerFactory = Callable[..., BrokerProcess]

_BROKERS = pytest.StashKey[list[BrokerProcess]]()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests that keep to topics of their own."""
    with running_broker(tmp_path_factory.mktemp("broker")) as process:
        yield process


@contextmanager
def running_broker(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[BrokerProcess]:
    """A broker that has to be well and to stop in order when its tests are over."""
    process = BrokerProcess(folder, settings)
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


@pytest.fixture
def new_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerFactory]:
    """Starts brokers of the test's own, with the settings it wants; they end with the test, however it ends."""
    started: list[BrokerProcess] = []
    request.node.stash[_BROKERS] = started

    def start(settings: Mapping[str, object] | None = None, options: Sequence[str] = ()) -> BrokerProcess:
        process = BrokerProcess(tmp_path_factory.mktemp("broker"), settings, options)
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
