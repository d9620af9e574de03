"""The ranges of a log's table: native partitions by id, which retention drops instead of deleting their rows.

A table has only its last range at first, which takes every id that no other range has. A log that has grown a little
gets a range before it, and the next one when that is half full. So the last range stays empty, and adding a range in
front of it moves no rows. If a range cannot be added, because another session keeps a lock on the table, records go to
the last range and no append waits; retention deletes them in steps later.

Definitions are not fenced. A former leader that is late does no harm: it drops ranges below a committed start, which
never goes back, and the current leader reads the list of ranges again after each failed attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import TableRange
from penstock.sql.errors import DatabaseError
from penstock.storage.sql.environment import SqlEnvironment, storage_error

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

logger = logging.getLogger(__name__)

_FIRST_BYTES = 1 << 20
"""A log that has less has no range but the last."""
_MOVED_BYTES = 16 << 20
"""So much may be moved out of the last range, while appends wait."""
_FEWEST_OFFSETS = 100
"""A range has so many at least, however large records are: not every append should add one."""
_RANGES_A_LOG = 64
"""About: the ranges of a large log are larger, so that there are not thousands of them."""
_NEVER = 1 << 63
_FIRST_PAUSE_MS = 5_000
_LONGEST_PAUSE_MS = 300_000


class RangePlan:
    """Where the next range of a log ends, by what the log has now."""

    def __init__(self, range_bytes: int, log_bytes: int, start_offset: int, end_offset: int) -> None:
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._offset_bytes = max(1.0, log_bytes / max(1, end_offset - start_offset))
        self._offsets = max(_FEWEST_OFFSETS, int(max(range_bytes, log_bytes // _RANGES_A_LOG) / self._offset_bytes))

    def next_end(self, last_end: int | None, before_last: int | None) -> tuple[int | None, int]:
        """The id at which a range is to end that is added now, or None; and the offset at which to look again. A log
        without other ranges than the last is looked at by its size instead.

        `last_end` is where the last range begins, None if it is the only one; `before_last` where the range before it
        does, None if that is the first.
        """
        end = self._end_offset
        in_last = max(0, end - max(self._start_offset, (last_end or 1) - 1)) * self._offset_bytes
        if last_end is None and in_last < _FIRST_BYTES:
            return None, _NEVER
        if last_end is not None and end < self._half(before_last, last_end):
            return None, self._half(before_last, last_end)
        if in_last > _MOVED_BYTES:
            return None, end + max(1, self._offsets // 4)
        end_id = max(end + 1, last_end or 0) + self._offsets
        return end_id, self._half(last_end, end_id)

    def _half(self, start_id: int | None, end_id: int) -> int:
        return (max(start_id or 0, self._start_offset) + end_id) // 2

    def ends(self) -> Iterator[int]:
        """The ids at which ranges end that have room for everything."""
        for offset in range(self._start_offset, self._end_offset, self._offsets):
            yield offset + self._offsets + 1


class TableRanges:
    """The ranges of one log."""

    def __init__(self, log: SqlLog, environment: SqlEnvironment) -> None:
        self._log = log
        self._env = environment
        self._ranges: Sequence[TableRange] | None = None
        """As they were read last; None if they have to be read."""
        self._look_at = 0
        """The end of the log from which on a range may have to be added."""
        self._first_due_in = 0
        """Bytes after which the first range may have to be added."""
        self._is_growing = False
        self._pause_ms = _FIRST_PAUSE_MS
        self._next_try_ms = 0.0

    def grew(self, size: int) -> None:
        """So many bytes were appended: adds a range in the background, if it is time."""
        self._first_due_in -= size
        if (self._log.committed_end < self._look_at and self._first_due_in > 0) or self._is_growing:
            return
        if self._env.timer.monotonic_ms() >= self._next_try_ms:
            self._is_growing = True
            self._log.start(self._grow(), "add a range to")

    async def _grow(self) -> None:
        log = self._log
        try:
            ranges = await self.read()
            if ranges and self._next_end(ranges) is not None:
                # Nothing of this broker is under way: the statement would wait for it, and readers for the statement.
                async with log.writer.alone:
                    end_id = self._next_end(ranges)
                    if end_id is not None and log.can_change:
                        await self._define(partial(_add_ranges, log.table.name, _last_end(ranges), [end_id]))
            self._pause_ms = _FIRST_PAUSE_MS
        except (StorageError, DatabaseError) as error:
            self._next_try_ms, self._look_at = self._env.timer.monotonic_ms() + self._pause_ms, 0
            logger.info(
                "could not add a range to a table, will retry",
                extra=fields(table=log.table.name, error=str(error), retry_s=self._pause_ms // 1000),
            )
            self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        finally:
            self._is_growing = False

    def _next_end(self, ranges: Sequence[TableRange]) -> int | None:
        before_last = ranges[-3].end_id if len(ranges) > 2 else None
        end_id, self._look_at = self.plan().next_end(_last_end(ranges), before_last)
        self._first_due_in = _FIRST_BYTES if self._look_at == _NEVER else _NEVER
        return end_id

    def plan(self) -> RangePlan:
        log = self._log
        return RangePlan(self._env.range_bytes, log.segments.size, log.start_offset, log.committed_end)

    async def read(self) -> Sequence[TableRange]:
        """The ranges, ascending; none if the table has none."""
        if self._ranges is None:
            name = self._log.table.name
            self._ranges = await self._env.read(
                lambda connection: connection.dialect.ranges_of(name, connection.execute)
            )
            if not self._ranges:
                self._look_at = self._first_due_in = _NEVER
        return self._ranges

    async def drop(self, names: Sequence[str]) -> None:
        """Drops ranges and their rows; StorageError if another session keeps a lock on the table."""
        try:
            await self._define(partial(_drop_ranges, self._log.table.name, names))
        except DatabaseError as error:
            raise storage_error(error) from error

    async def _define(self, work: Callable[[Connection], None]) -> None:
        self._ranges = None
        await self._env.group.define(work, self._env.generation)


def add_ranges(table: str, ends: Sequence[int], connection: Connection) -> None:
    """Gives an empty table ranges, inside of `run_ddl`."""
    if connection.dialect.ranges_of(table, connection.execute):
        _add_ranges(table, None, ends, connection)


def _add_ranges(table: str, start_id: int | None, ends: Sequence[int], connection: Connection) -> None:
    connection.limit_lock_wait()
    for end_id in ends:
        for statement in connection.dialect.add_range(table, start_id, end_id):
            connection.change(statement)
        start_id = end_id


def _drop_ranges(table: str, names: Sequence[str], connection: Connection) -> None:
    connection.limit_lock_wait()
    for statement in connection.dialect.drop_ranges(table, names):
        connection.change(statement)


def _last_end(ranges: Sequence[TableRange]) -> int | None:
    """Where the last range begins; None if it is the only one."""
    return ranges[-2].end_id if len(ranges) > 1 else None
