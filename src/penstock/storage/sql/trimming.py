"""The start of a log moves, and the rows below it go.

The start moves first, in the row of the log; rows go afterwards, in the background: ranges of the table that lie below
the start are dropped, other rows are deleted in bounded steps. A crash in between leaves rows that no reader sees, and
the next retention run removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import TableRange
from penstock.storage.retention import Aged, Hold, lost_bytes, start_by_retention, start_with_hold
from penstock.storage.sql import stored_state
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.partition_table import PartitionTable
from penstock.storage.sql.stored_state import check_leads, lock_row

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

logger = logging.getLogger(__name__)

_DELETED_ROWS = 20_000
"""More rows than that are not deleted if they go with their range later."""


class Trimmer:
    """Of one log."""

    def __init__(self, log: SqlLog, environment: SqlEnvironment) -> None:
        self._log = log
        self._env = environment
        self.moving = asyncio.Lock()
        """Held while the start moves, or the end goes back."""
        self._rows_start = 0
        """There are no rows below."""
        self._is_deleting = False

    async def trim(self, start_offset: int) -> None:
        log = self._log
        async with self.moving:
            if start_offset <= log.start_offset:
                return
            await log.flush()
            log.check_takes()
            await log.change(partial(self._move_start, start_offset, log.epochs.epoch_at(start_offset)))
            log.start_offset = start_offset
            log.epochs.trim(start_offset)
            log.producers.aborted.trim(start_offset)
            log.segments.trim(start_offset)
        self.delete_rows()

    def _move_start(self, start_offset: int, first_epoch: int, connection: Connection) -> None:
        row = lock_row(connection, self._log.row)
        check_leads(row, self._log.leader_epoch)
        connection.change("UPDATE queue SET start_offset = ? WHERE table_name = ?", start_offset, row.table)
        stored_state.trim(connection, row.id, start_offset, first_epoch)

    async def apply_retention(self, now_ms: int, hold: Hold | None) -> int:
        log = self._log
        self.delete_rows()
        if "delete" not in log.config.cleanup_policy:
            return 0
        old_start, settled_end = log.start_offset, min(log.settled_end, log.committed_end)
        parts = [
            Aged(each.next_offset, each.size, each.max_ms) for each in log.segments if each.next_offset <= settled_end
        ]
        start = start_by_retention(parts, log.segments.size, log.config, now_ms)
        start = start_with_hold(parts, start, log.config, now_ms, hold)
        if start > old_start:
            await self.trim(start)
        return lost_bytes(parts, old_start, start, hold)

    def delete_rows(self) -> None:
        """Lets the rows below the start go, range by range and step by step."""
        if self._rows_start < self._log.start_offset and not self._is_deleting and not self._log.is_closed:
            self._is_deleting = True
            self._log.start(self._delete_below_start(), "delete rows of")

    async def _delete_below_start(self) -> None:
        log = self._log
        try:
            while not log.is_closed:
                start = log.start_offset
                if await self._drop_ranges(start):
                    while await self._env.change(partial(_delete_some, log.table, start)) and not log.is_closed:
                        pass
                self._rows_start = start
                if start == log.start_offset:
                    return
        except StorageError as error:
            logger.warning(
                "could not delete old rows, will retry",
                extra=fields(log=str(log.topic_partition), error=str(error)),
            )
        finally:
            self._is_deleting = False

    async def _drop_ranges(self, start_offset: int) -> bool:
        """Drops the ranges that lie below the start; whether rows that are left there are to be deleted."""
        log = self._log
        ranges = await log.ranges.read()
        ended = await self._env.read(partial(_ended_ranges, log.table, ranges, start_offset)) if ranges else []
        if ended:
            await log.ranges.drop(ended)
        if len(ranges) - len(ended) <= 1:
            return True
        limit = _DELETED_ROWS + 1
        return await self._env.read(lambda connection: log.table.count_below(connection, start_offset, limit)) < limit


def _ended_ranges(
    table: PartitionTable, ranges: Sequence[TableRange], start_offset: int, connection: Connection
) -> list[str]:
    """The names of those whose rows lie wholly below the start. A row may reach into the next range."""
    return [
        name
        for name, end_id in ranges
        if end_id is not None and end_id - 1 <= start_offset and table.end_before(connection, end_id) <= start_offset
    ]


def _delete_some(table: PartitionTable, start_offset: int, connection: Connection) -> bool:
    return table.delete_some(connection, start_offset)
