"""Engines that let other tasks run meanwhile: while a log is made or written to, or until what was written is safe."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.storage.admission import Checked
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine, MemoryLog

_LONGEST_WRITE = 4
"""How many turns of the event loop a write takes, at most."""


class SlowEngine(MemoryEngine):
    """Logs are made when the test says so; those of "broken" cannot be."""

    def __init__(self) -> None:
        super().__init__(LogSettings(), Limits(), ManualClock())
        self.may_make = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        self.is_asked.set()
        if at.topic == "broken":
            raise StorageError("no")
        await self.may_make.wait()
        return await super().create(at, topic_id, config)


class SuspendingLog(MemoryLog):
    """A log in memory that takes a random time for each write."""

    write_suspends = True
    random = random.Random(0)

    async def write(self, checked: Checked, base_offset: int, leader_epoch: int) -> None:
        await self._late(super().write(checked, base_offset, leader_epoch))

    async def write_stamped(self, batch: memoryview) -> None:
        await self._late(super().write_stamped(batch))

    async def _late(self, write: Coroutine[Any, Any, None]) -> None:
        """Brings a write to its end, even if whoever waits for it is cancelled."""
        task = asyncio.get_running_loop().create_task(self._after_turns(write))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def _after_turns(self, write: Coroutine[Any, Any, None]) -> None:
        for _ in range(self.random.randint(1, _LONGEST_WRITE)):
            await asyncio.sleep(0)
        await write


class SuspendingEngine(MemoryEngine):
    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        log = SuspendingLog(at, topic_id, config, self._clock, self._limits, self._settings)
        self._logs[at] = log
        return log


class UnsafeLog(MemoryLog):
    """A log in memory of which nothing is safe, or visible, before the test says so."""

    waiting: deque[tuple[asyncio.Future[None], int]]
    """With where the log ended then."""
    safe_end = 0

    @property
    def secures_later(self) -> bool:
        return True

    @property
    def visible_end(self) -> int:
        return self.safe_end

    async def secure(self, messages: int) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((waiter, self.end_offset))
        await waiter

    def settle(self, error: Exception | None = None) -> None:
        """What was written first is safe, or `error` says why it never will be."""
        waiter, end_offset = self.waiting.popleft()
        if error is None:
            self.safe_end = max(self.safe_end, end_offset)
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class UnsafeEngine(MemoryEngine):
    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        log = UnsafeLog(at, topic_id, config, self._clock, self._limits, self._settings)
        log.waiting = deque()
        self._logs[at] = log
        return log

    async def delete(self, *logs: TopicPartition) -> None:
        for at in logs:
            self._give_up(self._logs[at])
        await super().delete(*logs)

    async def close(self) -> None:
        for log in self._logs.values():
            self._give_up(log)
        await super().close()

    def _give_up(self, log: Log) -> None:
        assert isinstance(log, UnsafeLog)
        while log.waiting:
            log.settle(StorageError("the log is closed"))
