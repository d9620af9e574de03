"""All timers of a broker: which partitions have some, and what becomes of a batch that asks for later delivery."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from penstock.clock import Clock
from penstock.delay.dueindex import DueIndex
from penstock.delay.indexfiles import Place
from penstock.delay.keeper import Keeper
from penstock.delay.lateness import Lateness
from penstock.delay.parting import plan
from penstock.delay.showing import Listing
from penstock.delay.timers import Saving, Timers
from penstock.delay.wishes import DelayRules
from penstock.records.batch import read_header
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
        self._is_closing = False
        self.lateness = Lateness()
        self._gone = (0, 0)
        """What keepers have counted that have gone: delivered, damaged."""

    @property
    def delivered(self) -> int:
        """How many messages were delivered here, since the start."""
        return self._gone[0] + sum(keeper.delivered for keeper in self._keepers.values())

    @property
    def damaged(self) -> int:
        """How many could not be delivered because they were damaged."""
        return self._gone[1] + sum(keeper.damaged for keeper in self._keepers.values())

    def keepers(self) -> list[Keeper]:
        """One for each partition here that has a companion."""
        return list(self._keepers.values())

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

    async def listing(self, partition: Partition) -> Listing | None:
        """What waits in a partition that leads, all that was acknowledged so far included; None if nothing ever did.
        ApiError while that is not known.
        """
        if partition.beside.companion is None:
            return None
        keeper = self._keeper(partition)
        await keeper.caught_up()
        return keeper.listing

    def look_after(self, partition: Partition) -> None:
        companion = partition.beside.companion
        if companion is None or partition in self._keepers or partition.is_gone or self._is_closing:
            return
        timers = Timers(partition.log, companion, DueIndex(self._place(companion)), self._saving)
        self._keepers[partition] = Keeper(partition, timers, self._clock, self.lateness)

    async def give_up_names(self, partition: Partition, batch: memoryview) -> None:
        found = plan(batch, self._clock.now_ms(), DelayRules(levels_ms=partition.log.config.delay_levels))
        # In a transaction it would count only once that is committed, which this partition is not told.
        if found is not None and not read_header(batch).is_transactional:
            names = {name for _, wish in found.waiting if (name := wish.timer_id or wish.cancels) is not None}
            if names:
                await self._keeper(partition).give_up(sorted(names))

    def role_changed(self, partition: Partition) -> None:
        """A partition has begun to lead or to follow."""
        self.look_after(partition)

    async def gone(self, partition: Partition) -> None:
        keeper = self._keepers.pop(partition, None)
        if keeper is not None:
            self._gone = (self._gone[0] + keeper.delivered, self._gone[1] + keeper.damaged)
            await keeper.close()

    async def close(self) -> None:
        self._is_closing = True
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))
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
