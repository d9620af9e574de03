"""All timers of a broker: which partitions have some, and what becomes of a batch that asks for later delivery."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from penstock.clock import Clock
from penstock.delay.dueindex import DueIndex
from penstock.delay.indexfiles import Place
from penstock.delay.keeper import Keeper
from penstock.delay.parting import plan
from penstock.delay.timers import Saving, Timers
from penstock.delay.wishes import DelayRules
from penstock.replication.partition import Partition
from penstock.replication.waiting import another_leads
from penstock.storage.contract import Log, Parting
from penstock.storage.segmented.log import SegmentedLog

logger = logging.getLogger(__name__)

_THREADS = 4
DEFAULT_SAVING = Saving()


class Delays:
    """Owns a keeper for every partition that has a companion."""

    def __init__(self, clock: Clock, saving: Saving = DEFAULT_SAVING) -> None:
        self._clock = clock
        self._saving = saving
        self._pool = ThreadPoolExecutor(_THREADS, "timers")
        self._keepers: dict[Partition, Keeper] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._delivered_before = 0
        """By keepers that have gone."""

    @property
    def delivered(self) -> int:
        """How many messages were delivered here, since the start."""
        return self._delivered_before + sum(keeper.delivered for keeper in self._keepers.values())

    def parting(self, partition: Partition, batch: memoryview) -> Parting | None:
        config = partition.log.config
        found = plan(batch, self._clock.now_ms(), DelayRules(config.delay_max_ms, config.delay_levels))
        if found is None:
            return None
        return lambda *append: self._keeper(partition).part(found, *append)

    def parting_of_marker(self, partition: Partition, producer_id: int) -> Parting | None:
        keeper = self._keepers.get(partition)
        return keeper.end_transaction if keeper is not None and keeper.knows(producer_id) else None

    async def ready(self, partition: Partition) -> None:
        await self._keeper(partition).ready()

    def look_after(self, partition: Partition) -> None:
        companion = partition.beside.companion
        if companion is None or partition in self._keepers or partition.is_gone or self._is_closing:
            return
        timers = Timers(partition.log, companion, DueIndex(self._place(companion)), self._saving)
        self._keepers[partition] = Keeper(partition, timers, self._clock)

    def role_changed(self, partition: Partition) -> None:
        """A partition has begun to lead or to follow, or has gone."""
        if not partition.is_gone:
            self.look_after(partition)
            return
        keeper = self._keepers.pop(partition, None)
        if keeper is not None:
            self._delivered_before += keeper.delivered
            ending = asyncio.get_running_loop().create_task(keeper.close(), name="timers of what has gone")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        self._is_closing = True
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()), *self._ending)
        self._keepers.clear()
        self._pool.shutdown()

    def _keeper(self, partition: Partition) -> Keeper:
        keeper = self._keepers.get(partition)
        if keeper is None:
            raise another_leads()
        return keeper

    def _place(self, companion: Log) -> Place | None:
        if isinstance(companion, SegmentedLog):
            return Place(companion.folder, companion.files, self._pool)
        return None
