"""Reading the state of a log from its database again.

That is needed when this broker begins to lead, when clients without a broker have added records, and when a write was
taken back: then the state in memory is *stale* and the log takes nothing until it was read again. A log is *fenced*
from the moment in which the database says that another broker leads it, until it is taken over again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import ApiError, Code, StorageError
from penstock.ids import is_companion
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.errors import DatabaseError, GroupAway
from penstock.storage.sql import stored_state
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.loading import StoredLog, load, load_as_leader, take_row
from penstock.storage.sql.stored_state import LogFencedError

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog
    from penstock.storage.sql.writer import Writer

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
_TURN_MS = 250
"""For so long other clients do not append after this broker had to take something back, so that its producers can
try again.
"""
_TURN_EVERY_MS = 1000
"""How often at most this broker keeps other clients from appending."""


class StateReload:
    """That of one log."""

    def __init__(self, log: SqlLog, env: SqlEnvironment) -> None:
        self.is_stale = False
        self.is_fenced = False
        self._log = log
        self._env = env
        self._turn_asked_ms = float("-inf")

    async def take_over(self, leader_epoch: int) -> None:
        """Fences earlier leaders of the log and its companion, and has both become what the database has."""
        log = self._log
        logs = [log] if log.companion is None else [log, log.companion]
        async with log.writer.alone:
            try:
                found = await self._env.change(
                    lambda connection: [each.reload.taken_row(connection, leader_epoch) for each in logs]
                )
            except LogFencedError as error:
                self.is_fenced = True
                raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, str(error)) from error
            if any(loaded is not None for loaded in found):
                log.writer.fail_waiting(
                    ApiError(Code.NOT_ENOUGH_REPLICAS, f"{log.topic_partition} was taken over with other records")
                )
            for each, loaded in zip(logs, found, strict=True):
                each.leader_epoch, each.reload.is_fenced = leader_epoch, False
                if loaded is not None:
                    each.adopt(loaded)

    def taken_row(self, connection: Connection, leader_epoch: int) -> StoredLog | None:
        """In a thread: None if the log is as it is known."""
        log = self._log
        row = take_row(connection, log.row, leader_epoch, log.known_end)
        known = (log.row.next_id, log.row.token, log.start_offset, log.leader_epoch)
        if (row.next_id, row.token, row.start_offset, row.leader_epoch) == known and not self.is_stale:
            return None  # no other broker has led since
        return load(connection, row, log.table)

    async def catch_up(self) -> None:
        """Takes in what clients without a broker have added since the last look, so that the next append is behind it.
        Does nothing while something of this broker is under way.
        """
        log = self._log
        if log.is_idle:
            row = await self._env.read(lambda connection: stored_state.find_row(connection, log.row.id))
            if row is not None and row.next_id > log.row.next_id:
                await self.refresh()

    async def refresh(self) -> None:
        """Takes in what others have added, if nothing of this broker is under way."""
        log = self._log
        async with log.writer.alone:
            if not self.is_stale and not log.writer.has_waiting and not self.is_fenced and log.failure is None:
                loaded = await self._env.change(self._load_as_leader)
                if not log.writer.has_waiting and not self.is_stale:
                    log.adopt(loaded)

    @property
    def is_wanted(self) -> bool:
        """Whether the log is stale, and reading it again brings it back."""
        return self.is_stale and not self.is_fenced and not self._log.is_closed and self._log.failure is None

    def wants_turn(self, now_ms: float) -> bool:
        """Whether other clients should not append for a moment: they were quicker, and may be so again and again."""
        return now_ms - self._turn_asked_ms >= _TURN_EVERY_MS and not is_companion(self._log.topic_partition)

    def asked_for_turn(self, now_ms: float) -> None:
        self._turn_asked_ms = now_ms

    def load(self, connection: Connection, *, with_turn: bool) -> StoredLog:
        """In a thread."""
        if with_turn:
            stored_state.ask_for_turn(connection, self._log.row, _TURN_MS)
        return self._load_as_leader(connection)

    def _load_as_leader(self, connection: Connection) -> StoredLog:
        """In a thread."""
        log = self._log
        return load_as_leader(connection, log.row, log.table, log.leader_epoch, log.known_end)


async def reload(writer: Writer, logs: Sequence[SqlLog]) -> None:
    """Returns when these logs of a writer are what the database has, or need not be any more.

    A log and its companion are read in one transaction and become what it says in one step. If one of them were late,
    the pair would look torn: a half of a batch that was stored after all would be taken for one without its other half.
    """
    while not writer.is_closing and (logs := [log for log in logs if log.reload.is_wanted]):
        try:
            async with writer.alone:
                await _reload_once(logs)
        except LogFencedError:
            for log in logs:
                log.reload.is_fenced = True
        except GroupAway:
            await asyncio.sleep(_PAUSE_S)
        except (DatabaseError, StorageError) as error:
            logger.warning(
                "could not read a log again, will retry",
                extra=fields(log=str(logs[0].topic_partition), error=str(error)),
            )
            await asyncio.sleep(_PAUSE_S)


async def _reload_once(logs: Sequence[SqlLog]) -> None:
    env = logs[0].env
    now_ms = env.timer.monotonic_ms()
    turns = [log.reload.wants_turn(now_ms) for log in logs]

    def load_all(connection: Connection) -> list[StoredLog]:
        return [log.reload.load(connection, with_turn=turn) for log, turn in zip(logs, turns, strict=True)]

    for log, loaded, turn in zip(logs, await env.run(load_all), turns, strict=True):
        log.adopt(loaded)
        if turn:
            log.reload.asked_for_turn(now_ms)
