"""ZooKeeper for tests of clusters that do not leave it alone, and connections to it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster.zookeeper import ZooKeeperCoordination
from support.zookeeper import TICK_MS, Ensemble, ZooKeeperProcess

SESSION_MS = 3_000
"""For tests that wait for the end of a session; the others have the longest that is granted."""

Connect = Callable[..., Awaitable[ZooKeeperCoordination]]


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """One that the test may pause, stop and kill."""
    process = ZooKeeperProcess(tmp_path / "zookeeper")
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    three = Ensemble(tmp_path / "ensemble")
    try:
        yield three.start()
    finally:
        three.kill()


@pytest.fixture
def chroot() -> str:
    return f"/tests/{uuid.uuid4().hex}"


@pytest.fixture
async def connect(chroot: str) -> AsyncIterator[Connect]:
    """Opens connections to the test's own tree; all are closed at the end."""
    opened: list[ZooKeeperCoordination] = []

    async def open_one(servers: str, session_ms: int = 20 * TICK_MS) -> ZooKeeperCoordination:
        opened.append(await ZooKeeperCoordination.open(servers, chroot, session_ms, SystemClock(), 30_000))
        return opened[-1]

    yield open_one
    for tree in opened:
        await tree.close()
