"""Keeps the metadata tables of groups true, as far as this broker coordinates them.

What happens in a group marks it (`groups/changes.py`); a few times a second the rows of all marked groups are compared
with what is stored, many groups in one transaction. So the number of transactions does not depend on how often groups
rebalance. The rules are in `docs/internals/sql.md`, "Metadata tables".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from penstock.clock import Clock
from penstock.cluster.metadata import OFFSETS_TOPIC, MetadataImage
from penstock.groups.changes import GroupChanges
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.group_tables.group_rows import rows_of
from penstock.ids import BrokerId
from penstock.sql.database import Database
from penstock.sql.errors import Contended, Duplicate
from penstock.storage.sql import metadata_tables
from penstock.storage.sql.coordinator_fence import Fence
from penstock.storage.sql.copy_loop import CopyLoop
from penstock.storage.sql.metadata_tables import GroupRows
from penstock.storage.sql.offset_table import can_show
from penstock.yielding import yielding

_OFFSETS_MS = 1000
_GROUPS_AT_ONCE = 200
_ROWS_AT_ONCE = 2000


class GroupTables:
    """The rows of this broker's groups."""

    def __init__(
        self,
        broker: BrokerId,
        coordinator: GroupCoordinator,
        changes: GroupChanges,
        database: Database,
        image: Callable[[], MetadataImage],
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._changes = changes
        self._image = image
        self._clock = clock
        self._offsets_at_ms = 0.0
        self._loop = CopyLoop("groups", database, self._write, clock)

    def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        await self._loop.close()

    async def _write(self, must_compare: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        with_offsets = now_ms >= self._offsets_at_ms
        has_loaded = self._changes.take_loaded()
        marked = self._changes.take(with_offsets=with_offsets)
        try:
            if has_loaded or must_compare:
                marked |= await self._all_groups()
                has_loaded = False
            async for groups, epochs in self._parts(sorted(filter(can_show, marked))):
                marked -= await self._write_groups(groups, epochs)
        finally:
            # What was not written has changed still.
            led = self._coordinator.led_shards()
            self._changes.mark(*(each for each in marked if can_show(each) and self._coordinator.index_of(each) in led))
            if has_loaded:
                self._changes.mark_loaded()
        if with_offsets:
            self._offsets_at_ms = now_ms + _OFFSETS_MS

    async def _all_groups(self) -> set[str]:
        """The groups that are here, and those that the tables say are."""
        shown = await self._loop.run(metadata_tables.groups_shown, is_read_only=True)
        here = [each for led in self._coordinator.led_shards().values() for each in (*led.groups, *led.committed)]
        return shown.union(here)

    async def _parts(self, group_ids: Sequence[str]) -> AsyncIterator[tuple[list[GroupRows], Mapping[int, int]]]:
        """What the tables should say of groups, in parts that are one transaction each, and the epochs of shards in
        which they say so.
        """
        led = self._coordinator.led_shards()
        part: list[GroupRows] = []
        rows = 0
        async for group_id in yielding(group_ids):
            index = self._coordinator.index_of(group_id)
            if index not in led:
                continue
            found = rows_of(
                group_id,
                led[index].groups.get(group_id),
                led[index].committed.get(group_id, {}),
                self._image(),
                self._broker,
                self._clock.now_ms(),
            )
            part.append(GroupRows(index, group_id, found))
            rows += sum(map(len, found.values()))
            if len(part) >= _GROUPS_AT_ONCE or rows >= _ROWS_AT_ONCE:
                yield part, {shard: each.epoch for shard, each in led.items()}
                led = self._coordinator.led_shards()
                part, rows = [], 0
        if part:
            yield part, {shard: each.epoch for shard, each in led.items()}

    async def _write_groups(self, groups: Sequence[GroupRows], epochs: Mapping[int, int]) -> set[str]:
        """The groups that were written. A group whose rows another client has locked does not hold up the others."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        if topic is None:
            return set()
        fence = Fence(topic.id, {each.shard: epochs[each.shard] for each in groups})
        try:
            await self._loop.run(partial(metadata_tables.write_groups, groups=groups, fence=fence))
        except (Contended, Duplicate):
            if len(groups) == 1:
                return set()
            middle = len(groups) // 2
            written = await self._write_groups(groups[:middle], epochs)
            return written | await self._write_groups(groups[middle:], epochs)
        return {each.group_id for each in groups}
