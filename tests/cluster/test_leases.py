"""Leases of processes that are killed and stopped, judged by what they themselves believed last."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster.coordination.contract import Create
from support.programs import dying_with_us
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

from .conftest import SESSION_MS, Connect

HOLDER = Path(__file__).with_name("lease_holder.py")


class Observer:
    """Hears of the lease in a connection of its own, with the time at which it heard."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Sequence[str]]] = []
        self._news = asyncio.Event()

    def tell(self, names: Sequence[str]) -> None:
        self.told.append((SystemClock().monotonic_ms(), names))
        self._news.set()

    async def wait_for(self, names: Sequence[str]) -> float:
        """When it was heard that the leases are these."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.told or self.told[-1][1] != names:
                self._news.clear()
                await self._news.wait()
        return self.told[-1][0]


class Holder:
    def __init__(self, output: Path, servers: str, chroot: str) -> None:
        self._output = output
        with output.open("wb") as stdout:
            command = [sys.executable, str(HOLDER), servers, chroot, str(SESSION_MS)]
            self.process = subprocess.Popen(dying_with_us(command), stdout=stdout)

    @property
    def said(self) -> list[str]:
        """Its whole lines so far."""
        return self._output.read_text().rpartition("\n")[0].splitlines()

    @property
    def until_ms(self) -> float:
        """The latest time until which it has believed to hold the lease that it took first."""
        said = self.said
        first = said[: said.index("lost")] if "lost" in said else said
        return max((float(line.split()[1]) for line in first if line.startswith("until")), default=0.0)


@pytest.fixture
async def observer(zookeeper: ZooKeeperProcess, connect: Connect) -> AsyncIterator[Observer]:
    tree = await connect(zookeeper.address)
    await tree.commit(Create("/leases", b""))
    observer = Observer()
    unsubscribe = tree.watch_children("/leases", observer.tell)
    yield observer
    unsubscribe()


@pytest.fixture
def holder(zookeeper: ZooKeeperProcess, observer: Observer, tmp_path: Path, chroot: str) -> Iterator[Holder]:
    held = Holder(tmp_path / "output", zookeeper.address, chroot)
    yield held
    held.process.kill()
    held.process.wait()


async def test_a_lease_ends_after_its_process_is_killed_and_not_before(observer: Observer, holder: Holder) -> None:
    begun_ms = await observer.wait_for(["holder"])
    # Longer than a session: it lives because it is renewed.
    await asyncio.to_thread(
        until, lambda: holder.until_ms > begun_ms + 2 * SESSION_MS, "the lease is renewed past two sessions"
    )
    assert observer.told[-1][1] == ["holder"]
    holder.process.kill()
    holder.process.wait()
    assert await observer.wait_for([]) > holder.until_ms


async def test_a_process_that_was_stopped_learns_that_its_lease_was_over_and_takes_it_again(
    observer: Observer, holder: Holder
) -> None:
    await observer.wait_for(["holder"])
    holder.process.send_signal(signal.SIGSTOP)
    gone_ms = await observer.wait_for([])
    holder.process.send_signal(signal.SIGCONT)
    await observer.wait_for(["holder"])
    await asyncio.to_thread(until, lambda: "lost" in holder.said, "the holder says that its session is lost")
    assert holder.until_ms < gone_ms
