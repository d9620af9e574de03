"""One suite, all engines: a test that takes `new_log`, or `tree`, runs once with each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock, SystemClock
from penstock.cluster.coordination.contract import Coordination
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.coordination.sql import SqlCoordination
from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.contract import Engine, Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.storage.sql.engine import SqlEngine
from support.logs import AT, DAY_MS, NOW_MS, TOPIC_ID, NewLog, settings
from support.stores import DATABASES, NewDatabase
from support.suspending import SuspendingEngine
from support.tree import Opener
from support.zookeeper import ZooKeeperProcess

_SESSION_MS = 10_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture(params=["segmented", "memory", "suspending", *DATABASES])
async def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    log_settings, limits = LogSettings(producer_expiry_ms=DAY_MS), Limits(producers_per_partition=4)
    made: Engine
    database: Database | None = None
    if request.param == "segmented":
        made = SegmentedEngine(tmp_path / "logs", log_settings, limits, clock)
    elif request.param in DATABASES:
        new_database: NewDatabase = request.getfixturevalue("new_database")
        database = await Database.open(DatabaseAddress.parse(new_database(request.param)), connections=4)
        made = SqlEngine(DatabaseGroups(database), log_settings, limits, clock, "a cluster")
    else:
        kind = MemoryEngine if request.param == "memory" else SuspendingEngine
        made = kind(log_settings, limits, clock)
    await made.open({})
    yield made
    await made.close()
    if database is not None:
        await database.close()


@pytest.fixture
def new_log(engine: Engine) -> NewLog:
    async def create(**named: object) -> Log:
        return await engine.create(AT, TOPIC_ID, settings(**named))

    return create


@pytest.fixture(params=["embedded", "zookeeper", *DATABASES])
async def open_tree(request: pytest.FixtureRequest, tmp_path: Path, new_database: NewDatabase) -> AsyncIterator[Opener]:
    """Opens another connection to one and the same tree; all are closed at the end."""
    opened: list[Coordination] = []
    chroot = f"/tests/{uuid.uuid4().hex}"

    async def open_embedded() -> Coordination:
        opened.append(await EmbeddedCoordination.open(tmp_path / "coordination.db"))
        return opened[-1]

    async def open_zookeeper() -> Coordination:
        process: ZooKeeperProcess = request.getfixturevalue("zookeeper")
        opened.append(await ZooKeeperCoordination.open(process.address, chroot, _SESSION_MS, SystemClock()))
        return opened[-1]

    if request.param in DATABASES:
        address = DatabaseAddress.parse(new_database(request.param))

    async def open_sql() -> Coordination:
        opened.append(await SqlCoordination.open(address, "tests", _SESSION_MS, SystemClock()))
        return opened[-1]

    yield {"embedded": open_embedded, "zookeeper": open_zookeeper}.get(request.param, open_sql)
    for tree in opened:
        await tree.close()


@pytest.fixture
async def tree(open_tree: Opener) -> Coordination:
    return await open_tree()
