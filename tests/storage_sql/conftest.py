"""Engines on one database: several brokers that share it, or one that comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress, DialectName
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql.engine import SqlEngine
from support.logs import NOW_MS
from support.lost_commits import LostCommits
from support.stores import DATABASES, NewDatabase

OpenEngine = Callable[..., Coroutine[Any, Any, SqlEngine]]

CLUSTER = "a cluster"


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, new_database: NewDatabase) -> str:
    return new_database(request.param)


@pytest.fixture
async def lossy(address: str) -> AsyncIterator[tuple[LostCommits, DatabaseAddress]]:
    """A network that can lose a COMMIT, and the address by which the database is reached through it."""
    target = DatabaseAddress.parse(address)
    if target.dialect is DialectName.SQLITE:
        pytest.skip("there is no network")
    network = LostCommits(target)
    yield network, await network.start()
    await network.close()


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
