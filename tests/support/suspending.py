"""An engine whose writes suspend, like those of a database: other tasks run before a write has ended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from penstock.config.topic import TopicConfig
from penstock.ids import TopicId, TopicPartition
from penstock.storage.admission import Checked
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine, MemoryLog

_LONGEST_WRITE = 4
"""How many turns of the event loop a write takes, at most."""


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
