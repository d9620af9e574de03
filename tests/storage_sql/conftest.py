"""Engines on one database: several brokers that share it, or one that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Connection, Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql.engine import SqlEngine
from support.logs import NOW_MS
from support.stores import DATABASES, NewDatabase
from support.waiting import PATIENCE_S

OpenEngine = Callable[..., Coroutine[Any, Any, SqlEngine]]

CLUSTER = "a cluster"


@asynccontextmanager
async def locked_rows(database: Database) -> AsyncIterator[None]:
    """Holds the locks of all logs' rows in `queue`: nobody can append meanwhile."""
    loop = asyncio.get_running_loop()
    is_locked, is_over = asyncio.Event(), asyncio.Event()

    def hold(connection: Connection) -> None:
        connection.change("UPDATE queue SET topic = topic")
        loop.call_soon_threadsafe(is_locked.set)
        asyncio.run_coroutine_threadsafe(is_over.wait(), loop).result(PATIENCE_S)

    holding = asyncio.create_task(database.run(hold))
    await is_locked.wait()
    try:
        yield
    finally:
        is_over.set()
        await holding


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, new_database: NewDatabase) -> str:
    return new_database(request.param)


@pytest.fixture
async def database(address: str) -> AsyncIterator[Database]:
    """A connection beside those of engines: somebody who uses the tables directly."""
    opened = await Database.open(DatabaseAddress.parse(address), connections=2)
    yield opened
    await opened.close()


@pytest.fixture
async def open_engine(address: str) -> AsyncIterator[OpenEngine]:
    """Opens another engine on the same database, with no logs wanted; all are closed at the end."""
    engines: list[SqlEngine] = []
    databases: list[Database] = []

    async def open_one(*, timeout_ms: int = 20_000, **named: Any) -> SqlEngine:
        databases.append(await Database.open(DatabaseAddress.parse(address), connections=4, timeout_ms=timeout_ms))
        chosen = {"look_ms": 3_600_000, **named}
        limits = Limits(producers_per_partition=chosen.pop("producers", 1000))
        engine = SqlEngine(DatabaseGroups(databases[-1]), LogSettings(), limits, ManualClock(NOW_MS), CLUSTER, **chosen)
        engines.append(engine)
        await engine.open({})
        return engine

    yield open_one
    for engine in engines:
        await engine.close()
    for each in databases:
        await each.close()
