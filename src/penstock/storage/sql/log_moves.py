"""Copies a log from one database group to another, while it is written to (`docs/internals/database-groups.md`).

`catch_up` copies rows in bounded transactions until little is missing. `finish`, while appends are held back, copies
the rest and all state; then the copy is as good as the log. Until the metadata says so it is only a copy: a new attempt
drops what an earlier one has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.background_loop import shielded
from penstock.errors import ApiError, Code
from penstock.ids import is_companion
from penstock.sql.database import Connection
from penstock.storage.snapshots import entry_bytes
from penstock.storage.sql import stored_state
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.loading import StoredLog, load_as_leader
from penstock.storage.sql.partition_table import PartitionTable
from penstock.storage.sql.stored_state import QueueRow, StateChanges, StoredState

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

_COPY_BYTES = 1 << 20
"""Of the rows of one transaction, about."""
FEW_OFFSETS = 1000
"""So many are copied while appends wait."""
_TURN_MS = 60_000
"""For so long clients without a broker do not append to a log that was copied: by then they know where it is. If it is
not moved after all, the next append of its leader ends that.
"""


class LogCopy:
    """The copy of one log. Its row and its table are there, and empty."""

    def __init__(self, log: SqlLog, env: SqlEnvironment, row: QueueRow, table: PartitionTable) -> None:
        self.log = log
        self.env = env
        self._row = row
        self._table = table
        self._end = 0
        """All rows below this offset are copied."""
        self.source_end = -1
        """Where the log ended when all of it was copied."""

    @property
    def queue_id(self) -> int:
        return self._row.id

    async def catch_up(self) -> None:
        """Copies what is committed, until less than FEW_OFFSETS are missing."""
        self._end = max(self._end, self.log.start_offset)
        while self.log.committed_end - self._end > FEW_OFFSETS:
            await self._copy_some(self.log.committed_end)

    async def finish(self) -> None:
        """Copies the rest, and all that is stored of the log. Appends wait until the caller lets them go on."""
        log = self.log
        state = (await log.env.change(self._last_state)).state
        while self._end < state.row.end_offset:
            await self._copy_some(state.row.end_offset)
        await self.env.change(partial(self._save, state))
        self.source_end = state.row.end_offset

    def _last_state(self, connection: Connection) -> StoredLog:
        """In a thread: clients without a broker, which append by themselves, append nothing behind it."""
        log = self.log
        if not is_companion(log.topic_partition):
            stored_state.ask_for_turn(connection, log.row, _TURN_MS)
        return load_as_leader(connection, log.row, log.table, log.leader_epoch, log.known_end)

    async def _copy_some(self, end_offset: int) -> None:
        offset = self._end
        rows, reached = await self.log.env.read(
            lambda connection: self.log.table.rows(connection, offset, _COPY_BYTES, end_offset)
        )
        await self.env.change(partial(self._insert, rows, reached))
        self._end = reached

    def _insert(self, rows: Sequence[Sequence[Any]], reached: int, connection: Connection) -> None:
        """Once: if the answer to an earlier attempt was lost, the rows may be there."""
        row = stored_state.lock_row(connection, self._row)
        if row.start_offset < reached:
            self._table.insert(connection, rows)
            _set_row(connection, self._row, "start_offset = ?", reached)

    def _save(self, state: StoredState, connection: Connection) -> None:
        row, queue_id = state.row, self._row.id
        stored_state.lock_row(connection, self._row)
        producers = [(producer_id, entry_bytes(producer_id, entry)) for producer_id, entry in state.producers.items()]
        stored_state.forget_details(connection, queue_id)
        stored_state.save(connection, queue_id, StateChanges(state.segments, state.epochs, producers, state.aborted))
        stored_state.save_compaction(connection, queue_id, state.compaction)
        _set_row(
            connection,
            self._row,
            "next_id = ?, start_offset = ?, leader_epoch = ?, token = ?",
            row.next_id,
            row.start_offset,
            row.leader_epoch,
            "" if stored_state.turn_until_us(row.token) else row.token,
        )


class LogMove:
    """A log, and its companion, on their way to another group."""

    def __init__(self, log: SqlLog) -> None:
        self.copies: list[LogCopy] = []
        """For the caller to fill."""
        self.may_count = False
        """Whether the copies are, or may be, the log that counts: then they must not be dropped."""
        self._log = log

    async def run(self, commit: Callable[[], Awaitable[bool]]) -> bool:
        """Copies everything, and has it committed while nothing can be appended; whether the copies count now."""
        async with AsyncExitStack() as held:
            for copy in self.copies:
                await held.enter_async_context(copy.log.compacting)
            for copy in self.copies:
                await copy.catch_up()
            for copy in self.copies:
                await held.enter_async_context(copy.log.trimmer.moving)
            await held.enter_async_context(self._log.writer.alone)
            if self._log.companion not in (None, *(copy.log for copy in self.copies)):
                return False  # there was none before
            for copy in self.copies:
                await copy.finish()
            committing = asyncio.ensure_future(commit())
            self.may_count = True
            try:
                self.may_count = await _outcome(committing)
            finally:
                if self.may_count:
                    self._leave()
            return self.may_count

    def _leave(self) -> None:
        at = self._log.topic_partition
        self._log.writer.fail_waiting(ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{at} is in another database group now"))
        for copy in self.copies:
            copy.log.taken_back((), is_fenced=True)


async def _outcome(committing: asyncio.Future[bool]) -> bool:
    """Is not cancelled: what is committed has to be known, or both groups would have the log."""
    while True:
        try:
            return await shielded(committing)
        except asyncio.CancelledError:
            if committing.cancelled():
                raise


def _set_row(connection: Connection, row: QueueRow, what: str, *values: object) -> None:
    connection.change(f"UPDATE queue SET {what} WHERE table_name = ?", *values, row.table)
