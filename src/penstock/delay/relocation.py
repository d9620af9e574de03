"""Relocating the messages that wait in the older half of a companion to its end, if they are few.

The older half can then be deleted: one message that is due in a year does not keep all that was sent after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.delay.control_batches import relocation
from penstock.delay.entries import due_of, size_of
from penstock.delay.intake import Intake
from penstock.delay.timers import Timers
from penstock.logs import fields
from penstock.replication.partition import Partition

logger = logging.getLogger(__name__)

_MOVED_MESSAGES = 10_000
_BATCH_MESSAGES = 250
_SOON_MS = 600_000
"""What is due before that is not moved, but waited for."""


class Relocation:
    """Of one partition, while it leads."""

    def __init__(self, partition: Partition, timers: Timers, clock: Clock, intake: Intake) -> None:
        self._partition = partition
        self._timers = timers
        self._clock = clock
        self._intake = intake

    async def forward(self, is_ready: Callable[[], bool]) -> None:
        timers, companion = self._timers, self._timers.companion
        if companion.size_bytes < timers.saving.move_from_bytes:
            return
        middle = (companion.start_offset + companion.end_offset) // 2
        entries = await timers.index.below(middle, _MOVED_MESSAGES)
        soon = self._clock.now_ms() + _SOON_MS
        if not entries or due_of(entries[0]) < soon:
            return
        if sum(map(size_of, entries)) > companion.size_bytes // 8:
            return
        for start in range(0, len(entries), _BATCH_MESSAGES):
            if not await self._move(entries[start : start + _BATCH_MESSAGES], is_ready):
                return
        logger.info(
            "moved waiting messages to the end of the companion",
            extra=fields(log=str(companion.topic_partition), messages=len(entries), below=middle),
        )

    async def _move(self, entries: list[bytes], is_ready: Callable[[], bool]) -> bool:
        contents = await self._timers.contents(entries)
        sound = [(entry, content) for entry, content in zip(entries, contents, strict=True) if content is not None]
        if not sound:
            return True
        places, kept = [entry for entry, _ in sound], [content for _, content in sound]
        async with self._partition.pair_append() as place:
            if not is_ready():
                return False
            self._intake.add(place.base_offset, due_of(places[0]))
            await place.write(relocation(places, kept, place.base_offset, place.leader_epoch))
        return True
