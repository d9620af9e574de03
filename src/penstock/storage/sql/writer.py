"""Gets what was written to a log into the database: groups of batches, each as one transaction.

A batch that is written goes to the last group that waits. One group is committed at a time; what arrives meanwhile
forms the next, so groups grow with the load. A log and its companion share a writer: both halves of an entry are in one
transaction.

The writer commits a group, or takes it back with all that came after it: each log of the group goes back to what the
database has, and waiting callers get the reason. After a COMMIT without an answer the writer finds the outcome out: the
token of the group is in the row of its log, or it is not.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.errors import ApiError, Code, DiskFullError, PenstockError, StorageError, UnsyncedError
from penstock.logs import fields
from penstock.sql.database import Connection
from penstock.sql.errors import (
    Contended,
    DatabaseError,
    Duplicate,
    GroupAway,
    NoRoom,
    NullRefused,
    ReadOnly,
    SchemaChanged,
    TooLarge,
    Unreachable,
)
from penstock.storage.aborted import AbortedEntry
from penstock.storage.epochs import EpochStart
from penstock.storage.sql import schema
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.partition_table import RefusedBatchError
from penstock.storage.sql.segments import SegmentRow
from penstock.storage.sql.state_reload import reload
from penstock.storage.sql.stored_state import (
    LogFencedError,
    MovedError,
    StateChanges,
    check_end,
    check_leads,
    lock_row,
    move_end,
    save,
)

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog
    from penstock.storage.sql.tail_cache import WrittenBatch

logger = logging.getLogger(__name__)

GROUP_BYTES = 4 << 20
GROUP_RECORDS = 50_000
"""A group that has so much takes no more, decompressed or in records: transactions stay short."""
_PREPARE_BYTES = 64 << 10
"""A group that waits is prepared when so much was added: below that a thread costs more than it saves."""
_DEFER_BYTES = 16 << 10
"""A group that has no more goes to the database in one round trip."""


def new_token() -> str:
    """What a change of a log's end leaves in its row, so that it is known again."""
    return uuid.uuid4().hex


class GroupPart:
    """What a group has of one log."""

    __slots__ = (
        "_preparing",
        "_rows",
        "_segments",
        "aborted",
        "base_offset",
        "end_offset",
        "epochs",
        "leader_epoch",
        "log",
        "producers",
        "written",
    )

    def __init__(self, log: SqlLog, base_offset: int) -> None:
        self.log = log
        self.base_offset = base_offset
        """Where the log ends before."""
        self.end_offset = base_offset
        self.leader_epoch = log.leader_epoch
        self.written: list[WrittenBatch] = []
        self.epochs: list[EpochStart] = []
        self.producers: dict[int, bytes] = {}
        self.aborted: list[AbortedEntry] = []
        self._segments: dict[int, SegmentRow] = {}
        self._rows: list[Sequence[Any]] = []
        """Of as many of the batches, ready to be inserted."""
        self._preparing = threading.Lock()

    @property
    def epoch(self) -> int:
        """In which the log is led: a later one may have begun since, on this broker."""
        return max(self.leader_epoch, self.log.leader_epoch)

    def change_segments(self, rows: list[SegmentRow]) -> None:
        for row in rows:
            self._segments[row[0]] = row

    def prepare(self) -> None:
        """In a thread: all that takes time, before the row of the log is locked. Two threads may be here at once, and
        batches be added meanwhile.
        """
        with self._preparing:
            while len(self._rows) < len(self.written):
                self._rows.append(self.log.table.encoded(self.written[len(self._rows)]))

    def largest(self) -> tuple[SqlLog, int, int]:
        """The log, where the batch with the largest row ends, and how many bytes that row has."""
        size, end_offset = 0, self.end_offset
        for written in self.written:
            for row in self.log.table.rows_of(written):
                row_size = sum(len(value) for value in row if isinstance(value, bytes | str))
                if row_size > size:
                    size, end_offset = row_size, written.header.next_offset
        return self.log, end_offset, size

    def check_end(self, connection: Connection) -> None:
        check_end(connection, self.log.row, expected_id=self.base_offset + 1, leader_epoch=self.epoch)

    def commit(self, connection: Connection, token: str) -> None:
        row = self.log.row
        move_end(
            connection,
            row,
            next_id=self.end_offset + 1,
            expected_id=self.base_offset + 1,
            leader_epoch=self.epoch,
            token=token,
        )
        self.log.table.insert_encoded(connection, list(chain.from_iterable(self._rows)))
        producers = list(self.producers.items())
        save(connection, row.id, StateChanges(list(self._segments.values()), self.epochs, producers, self.aborted))


class Group:
    """Batches that are committed together."""

    def __init__(self) -> None:
        self.parts: dict[SqlLog, GroupPart] = {}
        self.size = 0
        """Of its batches, decompressed if that is known."""
        self.records = 0
        self.token = new_token()
        self.ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        """Why it was taken back; None if it is committed."""
        self.refused: tuple[SqlLog, int, ApiError] | None = None
        """The batch that could not be stored: its log, where it ends, and why."""

    @property
    def is_full(self) -> bool:
        return self.size >= GROUP_BYTES or self.records >= GROUP_RECORDS

    def part_of(self, log: SqlLog) -> GroupPart:
        part = self.parts.get(log)
        if part is None:
            part = self.parts[log] = GroupPart(log, log.end_offset)
        return part

    def commit(self, connection: Connection) -> None:
        """In a thread."""
        for part in self.parts.values():
            try:
                part.prepare()
            except RefusedBatchError as error:
                self.refused = part.log, error.header.next_offset, error.reason
                raise
        if self.size <= _DEFER_BYTES:
            connection.defer()
        for part in self.parts.values():
            part.commit(connection, self.token)

    def prepare(self) -> None:
        """In a thread, while another group is committed: what `commit` would do first."""
        for part in list(self.parts.values()):
            part.prepare()

    def check_ends(self, connection: Connection) -> None:
        """In a thread: LogFencedError or MovedError if one of the logs does not end where it was believed to."""
        for part in self.parts.values():
            part.check_end(connection)

    def refuse_largest(self, reason: str) -> None:
        """The largest record is too large: its batch is to blame."""
        log, end_offset, _ = max((part.largest() for part in self.parts.values()), key=lambda found: found[2])
        self.refused = log, end_offset, ApiError(Code.MESSAGE_TOO_LARGE, f"the database does not take it: {reason}")

    def is_committed(self, connection: Connection) -> bool:
        """In a thread: whether an attempt has succeeded of which there was no answer. One log tells for all.
        LogFencedError if that cannot be told any more.
        """
        part = next(iter(self.parts.values()))
        row = lock_row(connection, part.log.row)
        if row.token == self.token:
            return True
        check_leads(row, part.epoch)
        return False


class Writer:
    """One log, or a log and its companion."""

    def __init__(self, name: str, environment: SqlEnvironment) -> None:
        self._name = name
        self._env = environment
        self._waiting: deque[Group] = deque()
        self._last: Group | None = None
        self._running: asyncio.Task[None] | None = None
        self._preparing: asyncio.Future[None] | None = None
        """A thread that prepares the group that is next."""
        self._unprepared_bytes = 0
        self._reloading: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self.alone = asyncio.Lock()
        """Held while a group is committed, and by every other change of the log."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self.alone.locked()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    async def drained(self) -> None:
        """Commits what waits, in the hands of one who is `alone`; raises why it was taken back."""
        while self._waiting:
            group = self._waiting[0]
            await self._commit_next()
            error = await group.ended
            if error is not None:
                raise error.with_traceback(None)

    def group(self, *, is_second_half: bool) -> Group:
        """The group that the next batch goes to; the second half of an entry goes to that of the first."""
        if not self._waiting or (self._waiting[-1].is_full and not is_second_half):
            self._last = Group()
            self._waiting.append(self._last)
        return self._waiting[-1]

    def wrote(self, group: Group, size: int, records: int) -> None:
        """A batch was added to a group."""
        group.size += size
        group.records += records
        self._env.buffer.bytes += size
        self._unprepared_bytes += size
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name=f"write {self._name}")
        else:
            self._prepare_next()

    def _prepare_next(self) -> None:
        """While a group is committed, which the database does, the next one gets ready here. What is ready takes
        several times as much memory, so nothing gets ready early while too much waits.
        """
        if self._env.buffer.is_full:
            return
        if self._preparing is None and self._waiting and self._unprepared_bytes >= _PREPARE_BYTES:
            self._unprepared_bytes = 0
            self._preparing = asyncio.get_running_loop().run_in_executor(
                self._env.preparation, self._waiting[0].prepare
            )
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, preparing: asyncio.Future[None]) -> None:
        self._preparing = None
        # What could not be prepared is met again when the group is committed.
        if not preparing.cancelled() and preparing.exception() is None:
            self._prepare_next()

    async def prepare(self) -> None:
        """Returns when there is room for another batch; a log that has nothing waiting is never held back."""
        while self._env.buffer.is_full and self._waiting:
            await self._env.buffer.changed()

    async def settled(self, log: SqlLog, end_offset: int) -> None:
        """Returns when all that was written is committed; raises why it was taken back. The caller's batch, if it has
        one, ends at `end_offset`.
        """
        group = self._last
        if group is None:
            return
        error = await asyncio.shield(group.ended)
        if error is not None:
            if group.refused is not None and group.refused[:2] == (log, end_offset):
                error = group.refused[2]
            raise error.with_traceback(None)

    async def close(self) -> None:
        """Waits for what is under way; what does not succeed is not tried again."""
        self._is_closing = True
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        while self._reloading:
            await asyncio.wait(list(self._reloading))

    async def _run(self) -> None:
        try:
            while self._waiting:
                async with self.alone:
                    if self._waiting:
                        await self._commit_next()
        finally:
            self._running = None

    async def _commit_next(self) -> None:
        group = self._waiting.popleft()
        try:
            error = await self._commit(group)
        except BaseException:
            logger.exception("a write to the database failed unexpectedly", extra=fields(log=self._name))
            self._take_back(group, StorageError(f"writing {self._name} failed; see the log of the broker"))
            raise
        if error is not None:
            self._take_back(group, error)
            return
        for part in group.parts.values():
            part.log.committed(part, group.token)
        self._end(group, None)

    async def _commit(self, group: Group) -> PenstockError | None:
        """Why the group is not committed; None if it is."""
        pauses, is_unknown = self._env.pauses(), False
        while True:
            try:
                if is_unknown:
                    if await self._env.run(group.is_committed):
                        return None
                    is_unknown = False
                await self._attempt(group)
                return None
            except (Unreachable, Contended) as error:
                is_unknown = is_unknown or error.is_outcome_unknown
                if pauses.is_over or self._is_closing or isinstance(error, GroupAway):
                    return self._given_up(error, is_unknown=is_unknown)
                await pauses.pause()
            except (DatabaseError, StorageError, RefusedBatchError) as error:
                return self._refused(group, error, is_unknown=is_unknown)

    async def _attempt(self, group: Group) -> None:
        try:
            await self._env.run(group.commit)
        except NullRefused:
            await self._env.run(group.check_ends)
            raise

    def _given_up(self, error: DatabaseError, *, is_unknown: bool) -> PenstockError:
        logger.error(
            "gave up a write: the database does not answer",
            extra=fields(log=self._name, error=str(error), may_be_stored=is_unknown),
        )
        if is_unknown:
            return UnsyncedError(f"{self._name}: the database did not say whether it stored the batch: {error}")
        if isinstance(error, GroupAway):
            return no_writes(f"{self._name}: nothing was stored: {error}")
        return _try_again(f"{self._name}: the database does not answer, nothing was stored: {error}")

    def _refused(self, group: Group, error: Exception, *, is_unknown: bool) -> PenstockError:
        logs = list(group.parts)
        if isinstance(error, TooLarge):
            group.refuse_largest(str(error))
        if isinstance(error, RefusedBatchError | TooLarge):
            return _try_again(f"{self._name}: taken back with a batch that cannot be stored")
        if isinstance(error, LogFencedError):
            logger.warning("another broker leads: took writes back", extra=fields(log=self._name, reason=str(error)))
            if is_unknown:
                return UnsyncedError(f"another broker leads, which may have stored this batch: {error}")
            return ApiError(Code.NOT_LEADER_OR_FOLLOWER, str(error))
        if isinstance(error, MovedError | Duplicate):
            # Part of taking turns with clients that append to the table themselves (docs/internals/direct.md).
            logger.debug(
                "a client without a broker appended first: took a write back, its producer sends it again",
                extra=fields(log=self._name, reason=str(error)),
            )
            return _try_again(f"{self._name}: a client without a broker appended first, nothing was stored: {error}")
        logger.error("the database refused a write", extra=fields(log=self._name, error=str(error)))
        if isinstance(error, NoRoom):
            for log in logs:
                log.disk_is_full = True
            return DiskFullError(f"the database has no room for {self._name}: {error}")
        if isinstance(error, SchemaChanged):
            failure = schema.altered([log.row.table for log in logs], error)
            for log in logs:
                log.fail(failure)
            return failure
        if is_unknown or (isinstance(error, DatabaseError) and error.is_outcome_unknown):
            return UnsyncedError(f"{self._name}: the database did not say whether it stored the batch: {error}")
        if isinstance(error, ReadOnly):
            return no_writes(f"{self._name}: nothing was stored: {error}")
        return StorageError(f"{self._name}: the database refused the batch, nothing was stored: {error}")

    def _take_back(self, group: Group, error: PenstockError) -> None:
        """Nothing of this group, or of what came after it, is in the log."""
        following = _try_again(f"{self._name}: taken back with a batch that was written before")
        groups = [group, *self._waiting]
        self._waiting.clear()
        producers: dict[SqlLog, set[int]] = {}
        for each in groups:
            for part in each.parts.values():
                producers.setdefault(part.log, set()).update(part.producers)
        is_fenced = isinstance(error, ApiError) and error.code is Code.NOT_LEADER_OR_FOLLOWER
        for log, affected in producers.items():
            log.taken_back(affected, is_fenced=is_fenced)
        if not is_fenced:
            self._reload(list(producers))
        self._end(group, error)
        for each in groups[1:]:
            self._end(each, error if is_fenced else following)

    def _reload(self, logs: list[SqlLog]) -> None:
        task = asyncio.get_running_loop().create_task(reload(self, logs), name=f"reload {self._name}")
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def fail_waiting(self, error: PenstockError) -> None:
        """Takes back all that waits; the caller is `alone`, and says to the logs what they are."""
        waiting = list(self._waiting)
        self._waiting.clear()
        for group in waiting:
            self._end(group, error)

    def _end(self, group: Group, error: PenstockError | None) -> None:
        self._env.buffer.remove(group.size)
        if group is self._last:
            self._last = None
        group.ended.set_result(error)


def no_writes(reason: str) -> ApiError:
    """Clients read the metadata again, which says that the partition has no leader, and then try again."""
    return ApiError(Code.LEADER_NOT_AVAILABLE, reason)


def _try_again(reason: str) -> ApiError:
    return ApiError(Code.NOT_ENOUGH_REPLICAS, reason)
