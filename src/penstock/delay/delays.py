"""All timers of a broker: which partitions have some, and what becomes of a batch that asks for later delivery."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from penstock.clock import Clock
from penstock.config.topic import TopicConfig
from penstock.delay.batch_split import SplitPlan, plan_split, plan_split_of_records
from penstock.delay.clock_watch import ClockWatch
from penstock.delay.delay_headers import DelayRules, may_have_delay_headers
from penstock.delay.delivery import Delivery
from penstock.delay.due_index import DueIndex
from penstock.delay.index_files import IndexFolder
from penstock.delay.lateness import Lateness
from penstock.delay.listing import Listing
from penstock.delay.mark_reset import ResetLog
from penstock.delay.timers import Saving, Timers
from penstock.records.batch import BatchHeader, read_header
from penstock.replication.companion_pair import Pair
from penstock.replication.partition import Partition
from penstock.replication.waiters import another_leads
from penstock.storage.contract import Log

logger = logging.getLogger(__name__)

_THREADS = 4
DEFAULT_SAVING = Saving()


class Delays:
    """Owns the delivery of every partition that has a companion."""

    def __init__(self, clock: Clock, saving: Saving = DEFAULT_SAVING) -> None:
        self._clock = clock
        self._saving = saving
        self._pool = ThreadPoolExecutor(_THREADS, "timers")
        self._deliveries: dict[Partition, Delivery] = {}
        self._is_closing = False
        self.lateness = Lateness()
        self.clock_watch = ClockWatch(clock, self._clock_jumped)
        self.resets = ResetLog(clock)
        self._gone = (0, 0)
        """Delivered and damaged messages of partitions that have left this broker."""

    @property
    def delivered(self) -> int:
        """How many messages were delivered here, since the start."""
        return self._gone[0] + sum(delivery.delivered for delivery in self._deliveries.values())

    @property
    def damaged(self) -> int:
        """How many could not be delivered because they were damaged."""
        return self._gone[1] + sum(delivery.all_damaged for delivery in self._deliveries.values())

    def deliveries(self) -> list[Delivery]:
        """One for each partition here that has a companion."""
        return list(self._deliveries.values())

    takes_delayed = True

    def asks_for_delay(self, block: memoryview) -> bool:
        return may_have_delay_headers(block)

    def delayed_in(self, config: TopicConfig, header: BatchHeader, block: memoryview) -> SplitPlan | None:
        rules = DelayRules(config.delay_max_ms, config.delay_levels)
        return plan_split_of_records(header, block, self._clock.now_ms(), rules)

    def split(
        self, partition: Partition, delayed: object, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> Pair:
        assert isinstance(delayed, SplitPlan)
        return self._delivery(partition).split(delayed, header, base_offset, leader_epoch)

    def split_marker(
        self, partition: Partition, marker: memoryview, base_offset: int, leader_epoch: int
    ) -> Pair | None:
        delivery = self._deliveries.get(partition)
        return None if delivery is None else delivery.split_marker(marker, base_offset, leader_epoch)

    async def ready(self, partition: Partition) -> None:
        await self._delivery(partition).ready()

    async def listing(self, partition: Partition) -> Listing | None:
        """What waits in a partition that leads, all that was acknowledged so far included; None if nothing ever did.
        ApiError while that is not known.
        """
        if partition.pair.companion is None:
            return None
        delivery = self._delivery(partition)
        await delivery.caught_up()
        return delivery.listing

    def look_after(self, partition: Partition) -> None:
        companion = partition.pair.companion
        if companion is None or partition in self._deliveries or partition.is_gone or self._is_closing:
            return
        timers = Timers(partition.log, companion, DueIndex(self._place(companion)), self._saving)
        self._deliveries[partition] = Delivery(partition, timers, self._clock, self.lateness, self.resets)
        self.clock_watch.start()

    async def cancel_timers(self, partition: Partition, batch: memoryview) -> None:
        rules = DelayRules(levels_ms=partition.log.config.delay_levels)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._pool, plan_split, batch, self._clock.now_ms(), rules)
        # In a transaction it would count only once that is committed, which this partition is not told.
        if found is not None and not read_header(batch).is_transactional:
            names = {
                name for _, request, _ in found.waiting if (name := request.timer_id or request.cancels) is not None
            }
            if names:
                await self._delivery(partition).cancel(sorted(names))

    def role_changed(self, partition: Partition) -> None:
        """A partition has begun to lead or to follow."""
        self.look_after(partition)

    async def gone(self, partition: Partition) -> None:
        delivery = self._deliveries.pop(partition, None)
        if delivery is not None:
            self._gone = (self._gone[0] + delivery.delivered, self._gone[1] + delivery.all_damaged)
            await delivery.close()

    async def close(self) -> None:
        self._is_closing = True
        await self.clock_watch.close()
        await asyncio.gather(*(delivery.close() for delivery in self._deliveries.values()))
        self._deliveries.clear()
        self._pool.shutdown()

    def _clock_jumped(self) -> None:
        for delivery in self._deliveries.values():
            delivery.clock_jumped()

    def _delivery(self, partition: Partition) -> Delivery:
        delivery = self._deliveries.get(partition)
        if delivery is None:
            raise another_leads()
        return delivery

    def _place(self, companion: Log) -> IndexFolder | None:
        place = companion.side_folder
        return None if place is None else IndexFolder(place.path, place.files, self._pool)
