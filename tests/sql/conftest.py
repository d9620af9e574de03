"""Databases of all kinds; a test that takes `database` runs once with each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from support.broker_process import BrokerProcess
from support.stores import DATABASES, NewDatabase

OpenDatabase = Callable[..., Coroutine[Any, Any, Database]]
NewSqlBroker = Callable[..., BrokerProcess]

T = TypeVar("T")

COLUMNS = ["id", "body", "name", "small"]


def create_table(connection: Connection) -> None:
    dialect = connection.dialect
    columns = [
        ("id", dialect.big_integer),
        ("body", dialect.blob),
        ("name", dialect.varchar(255)),
        ("small", dialect.small_integer),
    ]
    for statement in dialect.create_table("things", columns, primary_key=["id"], indexes=["name"]):
        connection.execute(statement)


def query(sql: str, *params: object) -> Callable[[Connection], list[tuple[Any, ...]]]:
    return lambda connection: connection.execute(sql, *params)


def change(sql: str, *params: object) -> Callable[[Connection], int]:
    return lambda connection: connection.change(sql, *params)


def insertion(table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Callable[[Connection], None]:
    return lambda connection: connection.insert(table, columns, rows)


def by_hand(url: str, *works: Callable[[Connection], T], is_ddl: bool = False) -> T:
    """Does something in a database as a person does, who has nothing to do with brokers; gives the last result."""

    async def run() -> T:
        database = await Database.open(DatabaseAddress.parse(url), connections=1)
        try:
            results = [await (database.run_ddl(work) if is_ddl else database.run(work)) for work in works]
            return results[-1]
        finally:
            await database.close()

    return asyncio.run(run())


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, new_database: NewDatabase) -> DatabaseAddress:
    return DatabaseAddress.parse(new_database(request.param))


@pytest.fixture
def sql_broker(tmp_path: Path) -> Iterator[NewSqlBroker]:
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


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, new_database: NewDatabase) -> str:
    return new_database(request.param)


@pytest.fixture
async def open_database(new_database: NewDatabase) -> AsyncIterator[OpenDatabase]:
    """Opens databases; all are closed at the end, before they are dropped."""
    opened: list[Database] = []

    async def open_one(address: DatabaseAddress, **named: Any) -> Database:
        opened.append(await Database.open(address, **named))
        return opened[-1]

    yield open_one
    for database in opened:
        await database.close()


@pytest.fixture
async def database(address: DatabaseAddress, open_database: OpenDatabase) -> Database:
    """With an empty table `things`."""
    made = await open_database(address, timeout_ms=20_000)
    await made.run_ddl(create_table)
    return made
