"""How many segment files are open at once: the bound, and which file is closed when another one is needed.

Second chance: segments stand in a queue; the one at its head is closed, unless it was used since it came to the end of
the queue or cannot be closed now, in which case it goes to the end again. An open looks at a bounded number of them, so
that its cost does not grow with the number of partitions.

A segment with bytes that are not synced stays open: the kernel tells of a failed write through the file that was open
when it failed. If the queue is full of those, `make_room` has them synced, oldest first; a task that wants to open a
file and can wait, waits for that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from penstock.background_loop import shielded
from penstock.logs import fields
from penstock.storage.files import File, Files

if TYPE_CHECKING:
    from penstock.storage.segmented.segment import Segment

logger = logging.getLogger(__name__)

LOOKS_PER_OPEN = 16
"""How many segments an open looks at, at most, to find one that can be closed."""

_SYNCED_TOGETHER = 256
"""How many segments are synced, at most, before another look at whether there is room."""


class OpenSegments:
    """The segments whose file is open or whose indexes are loaded."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self.sync: Callable[[Sequence[Segment]], Awaitable[None]] | None = None
        """Syncs these segments; set by who knows their logs."""
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()
        """Segments are opened by the event loop and by threads."""
        self._making_room: asyncio.Task[None] | None = None
        self._is_over = False
        """That the limit could not be held was said already."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, segment: Segment, *, create: bool = False) -> File:
        """Opens the file of a segment, after closing another one if there are as many as may be."""
        self.opened(segment)
        try:
            file = self.files.create(segment.path()) if create else self.files.open(segment.path())
        except BaseException:
            self.forget(segment)
            raise
        with self._lock:
            self._open[segment] = None
        return file

    def opened(self, segment: Segment) -> None:
        """Counts a segment that has, or is about to have, its file open or its indexes loaded."""
        with self._lock:
            self._open[segment] = None
            self._open.move_to_end(segment)
            self._shrink(self._limit, LOOKS_PER_OPEN, segment)

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._open.pop(segment, None)

    def has_room(self) -> bool:
        """Whether one more can be opened without going beyond the limit; closes another one for that if it can."""
        if len(self._open) < self._limit:
            return True
        with self._lock:
            return self._shrink(self._limit - 1, LOOKS_PER_OPEN)

    async def make_room(self) -> None:
        """Returns when one more can be opened, if that can be brought about by syncing what is open."""
        while not self.has_room():
            if self._making_room is None:
                work = self._sync_oldest()
                self._making_room = asyncio.get_running_loop().create_task(work, name="sync segments to close them")
                self._making_room.add_done_callback(self._room_made)
            before = len(self._open)
            await shielded(self._making_room)
            if not self.has_room() and len(self._open) >= before:
                if not self._is_over:
                    logger.warning(
                        "more segment files are open than limits.open_files allows, and none can be closed",
                        extra=fields(open=len(self._open), limit=self._limit),
                    )
                self._is_over = True
                return
        self._is_over = False

    def _room_made(self, task: asyncio.Task[None]) -> None:
        self._making_room = None

    async def _sync_oldest(self) -> None:
        with self._lock:
            unsynced = (segment for segment in self._open if segment.synced_size < segment.size)
            oldest = list(islice(unsynced, max(1, min(_SYNCED_TOGETHER, self._limit // 4))))
        if oldest and self.sync is not None:
            await self.sync(oldest)
        with self._lock:
            # Twice: the first look at one that was used only takes its second chance away.
            self._shrink(self._limit - 1, 2 * len(self._open))

    def _shrink(self, size: int, looks: int, keep: Segment | None = None) -> bool:
        """Closes segments until no more than `size` are left, or so many were looked at; whether that was reached."""
        looks = min(looks, 2 * len(self._open))
        while len(self._open) > size and looks > 0:
            looks -= 1
            oldest = next(iter(self._open))
            if oldest is keep or oldest.was_used or not oldest.release():
                oldest.was_used = False
                self._open.move_to_end(oldest)
            else:
                del self._open[oldest]
        return len(self._open) <= size
