"""Stores and clients on databases of all kinds; a test that takes `url` runs once with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock import direct
from penstock.brokerless.sql.store import SqlStore
from support.broker_process import BrokerProcess
from support.stores import DATABASES, NewDatabase

OpenStore = Callable[[str], SqlStore]
OpenClient = Callable[..., direct.Client]
NewSqlBroker = Callable[..., BrokerProcess]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, new_database: NewDatabase) -> str:
    return new_database(request.param)


@pytest.fixture
def open_store(new_database: NewDatabase) -> Iterator[OpenStore]:
    """Opens stores; all are closed at the end, before the databases are dropped."""
    opened: list[SqlStore] = []

    def open_one(url: str) -> SqlStore:
        opened.append(SqlStore(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def open_client(new_database: NewDatabase) -> Iterator[OpenClient]:
    opened: list[direct.Client] = []

    def open_one(url: str, **options: object) -> direct.Client:
        opened.append(direct.Client(url, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def store(url: str, open_store: OpenStore) -> SqlStore:
    return open_store(url)


@pytest.fixture
def sql_broker(tmp_path: Path, new_database: NewDatabase) -> Iterator[NewSqlBroker]:
    """Starts brokers on a database, each with a folder of its own; all are killed at the end."""
    started: list[BrokerProcess] = []
    folders = count()

    def start(url: str, number: int = 1, **more: object) -> BrokerProcess:
        settings = {"broker.id": number, "groups.initial_rebalance_delay_ms": 20, **more}
        broker = BrokerProcess(tmp_path / f"{next(folders)}", settings, env={"PENSTOCK_SQL_URL": url})
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.kill()
