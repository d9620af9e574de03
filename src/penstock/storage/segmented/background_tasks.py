"""Tasks of a log that no other task awaits; a failure goes to the broker's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from penstock.errors import StorageError
from penstock.logs import fields

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """The tasks of one log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._logged(work), name=f"log {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Returns when nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _logged(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except (StorageError, OSError) as error:
            logger.error("background task of a log failed", extra=fields(log=self._name, error=str(error)))
