"""Looks every so often for records that clients without a broker have added to the logs that this broker leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from penstock.errors import ApiError, StorageError
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.log import SqlLog

logger = logging.getLogger(__name__)

_ROWS_A_LOOK = 500


class AddedRowsWatch:
    """Has each log take in what was added to it."""

    def __init__(self, logs: Callable[[], Iterable[SqlLog]], look_ms: int) -> None:
        self._logs = logs
        self._look_s = look_ms / 1000
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="look for added rows")

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(self._look_s):
                    await self._stop.wait()
            except TimeoutError:
                try:
                    await self._look()
                except (StorageError, ApiError) as error:
                    logger.warning("could not look for added rows", extra=fields(error=str(error)))

    async def _look(self) -> None:
        led: dict[SqlEnvironment, dict[int, SqlLog]] = {}
        for log in self._logs():
            if log.leader_epoch >= 0 and log.is_idle and log.env.takes_writes:
                led.setdefault(log.env, {})[log.row.id] = log
        # A group that does not answer must not keep the others waiting.
        found = await asyncio.gather(*(_look_at(env, logs) for env, logs in led.items()), return_exceptions=True)
        for error in found:
            if error is not None:
                raise error


async def _look_at(env: SqlEnvironment, logs: Mapping[int, SqlLog]) -> None:
    queue_ids = list(logs)
    for at in range(0, len(queue_ids), _ROWS_A_LOOK):
        for queue_id, next_id in await env.read(partial(_ends, queue_ids[at : at + _ROWS_A_LOOK])):
            log = logs[queue_id]
            if next_id > log.row.next_id and log.is_idle:
                await log.refresh()


def _ends(queue_ids: Sequence[int], connection: Connection) -> list[tuple[int, int]]:
    marks = ", ".join("?" * len(queue_ids))
    return connection.execute(f"SELECT id, next_id FROM queue WHERE id IN ({marks})", *queue_ids)
