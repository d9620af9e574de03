"""ZooKeeper for tests of clusters that do not leave it alone, and connections to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, overload

import pytest

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Coordination, Create
from penstock.cluster.coordination.zookeeper import ZooKeeperCoordination
from penstock.errors import ConflictError, CoordinationError
from support.waiting import PATIENCE_S
from support.zookeeper import TICK_MS, Ensemble, ZooKeeperProcess

from .members import LEASE_MS, Member

SESSION_MS = 3_000
"""For tests that wait for the end of a session; the others have the longest that is granted."""

T = TypeVar("T")

Connect = Callable[..., Coroutine[Any, Any, ZooKeeperCoordination]]
Join = Callable[..., Coroutine[Any, Any, Member]]


async def check_renewals(tree: Coordination, other: Coordination) -> None:
    """A renewal of the lease of `tree` counts only for one who has read what was committed before it."""
    await tree.commit(Create("/lease", b"", leased=True))
    seen = await tree.clock()
    now_ms = SystemClock().monotonic_ms
    await eventually(lambda: tree.lease_until_ms(seen) > now_ms(), "the lease holds")
    # Another leader, for instance.
    after = await other.commit(Create("/a", b""))
    await eventually(lambda: tree.lease_until_ms(after) > tree.lease_until_ms(seen), "a later renewal counts")
    until_ms = tree.lease_until_ms(seen)
    await eventually(lambda: now_ms() > until_ms, "the session time passes")
    assert tree.lease_until_ms(seen) == until_ms
    assert tree.lease_until_ms() >= tree.lease_until_ms(after) > now_ms()
    assert tree.lease_until_ms(0) < now_ms()


@overload
async def eventually(look: Callable[..., Awaitable[T]], what: str) -> T: ...


@overload
async def eventually(look: Callable[..., T], what: str) -> T: ...


async def eventually(look: Callable[..., Any], what: str) -> Any:
    """The first true value of `look`, on the event loop; a tree that cannot be reached is asked again."""
    deadline_ms = SystemClock().monotonic_ms() + PATIENCE_S * 1000
    while SystemClock().monotonic_ms() < deadline_ms:
        try:
            found = look()
            value = await found if isinstance(found, Awaitable) else found
            if value:
                return value
        except ConflictError:
            raise
        except CoordinationError:
            pass
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: not within {PATIENCE_S:g} s")


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


@pytest.fixture
async def join(zookeeper: ZooKeeperProcess, connect: Connect, tmp_path: Path) -> AsyncIterator[Join]:
    """Starts what a broker is in a cluster, on a data folder that goes by its number."""
    members: list[Member] = []

    async def join_one(number: int, *, lease_ms: int = LEASE_MS, **named: Any) -> Member:
        member = Member(number, await connect(zookeeper.address), tmp_path / f"broker-{number}", lease_ms)
        members.append(member)
        await member.join(**named)
        return member

    yield join_one
    for member in members:
        await member.die()
