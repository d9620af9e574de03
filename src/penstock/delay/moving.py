"""Moving what waits in the older half of a companion to its end, if it is little: then that half can go.

So one message that is due in a year does not hold all that was sent after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.clock import Clock
from penstock.delay.entries import due_of, size_of
from penstock.delay.notes import moving
from penstock.delay.timers import Timers
from penstock.logs import fields
from penstock.replication.beside import Pair
from penstock.replication.partition import Partition

logger = logging.getLogger(__name__)

_MOVED_MESSAGES = 10_000
_BATCH_MESSAGES = 250
_SOON_MS = 600_000
"""What is due before that is not moved, but waited for."""


class Moving:
    """Of one partition, while it leads."""

    def __init__(
        self, partition: Partition, timers: Timers, clock: Clock, put_aside: Callable[[int, int], None]
    ) -> None:
        """`put_aside` is told of the offset of what is written, and of its earliest due time."""
        self._partition = partition
        self._timers = timers
        self._clock = clock
        self._put_aside = put_aside

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
            "messages were moved to the end of the companion",
            extra=fields(log=str(companion.topic_partition), messages=len(entries), below=middle),
        )

    async def _move(self, entries: list[bytes], is_ready: Callable[[], bool]) -> bool:
        contents = await self._timers.contents(entries)
        sound = [(entry, content) for entry, content in zip(entries, contents, strict=True) if content is not None]
        if not sound:
            return True

        def make(base_offset: int, leader_epoch: int) -> Pair | None:
            if not is_ready():
                return None
            self._put_aside(base_offset, due_of(sound[0][0]))
            places, kept = [entry for entry, _ in sound], [content for _, content in sound]
            return moving(places, kept, base_offset, leader_epoch)

        return await self._partition.append_pair(make)
