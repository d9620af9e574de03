"""Notices that the machine's wall clock was set, by comparing it with the monotonic clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from penstock.clock import Clock

logger = logging.getLogger(__name__)

JUMP_MS = 1000
"""Less is how clocks are kept right."""
_LOOK_S = 1.0


class ClockWatch:
    """Looks once a second; owns one task from `start` on, which `close` ends."""

    def __init__(self, clock: Clock, jumped: Callable[[], None]) -> None:
        """`jumped` is called after the clock was set, ahead or back."""
        self._clock = clock
        self._jumped = jumped
        self._ahead_ms = self._ahead()
        self._task: asyncio.Task[None] | None = None
        self.ahead = 0
        self.back = 0
        """How many times it was set."""

    def start(self) -> None:
        if self._task is None:
            self._ahead_ms = self._ahead()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="clock watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def look(self) -> None:
        """Compares the clocks once."""
        before_ms, self._ahead_ms = self._ahead_ms, self._ahead()
        jump_ms = self._ahead_ms - before_ms
        if abs(jump_ms) < JUMP_MS:
            return
        if jump_ms > 0:
            self.ahead += 1
        else:
            self.back += 1
        logger.warning(
            "the machine's clock was set %s by %.1f s; delayed messages are due by the clock as it is now",
            "ahead" if jump_ms > 0 else "back",
            abs(jump_ms) / 1000,
        )
        self._jumped()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def _ahead(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic_ms()
