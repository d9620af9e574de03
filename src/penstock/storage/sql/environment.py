"""What all logs of the SQL engine share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import StorageError
from penstock.sql.database import Connection
from penstock.sql.dialects.dialect import Dialect
from penstock.sql.errors import Contended, DatabaseError, GroupAway, Unreachable
from penstock.sql.group import DatabaseGroup
from penstock.storage.sql.read_ahead import HeldReads
from penstock.storage.sql.tail_cache import CacheRoom

T = TypeVar("T")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class RetryPauses:
    """Growing pauses between attempts, until their time is over."""

    def __init__(self, limit_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + limit_ms
        self._next_s = _FIRST_PAUSE_S

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic_ms() + self._next_s * 1000 > self._until_ms

    async def pause(self) -> None:
        await asyncio.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


class WriteBuffer:
    """What all logs have taken and the database has not."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_full(self) -> bool:
        return self.bytes > self.limit_bytes

    async def changed(self) -> None:
        """Returns when it holds less than now."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def remove(self, count: int) -> None:
        self.bytes -= count
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class LostRecords:
    """How many records databases have lost, since the start of this broker."""

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SqlEnvironment:
    """A database group while one server is its primary, and the bounds within which it is used."""

    group: DatabaseGroup
    generation: int
    """Of the group: what is changed under another primary was not meant for it."""
    clock: Clock
    timer: Clock
    """Measures time limits; it runs even where `clock` is set by hand."""
    max_producers: int
    producer_expiry_ms: int
    compaction_memory_bytes: int
    retry_ms: int
    range_bytes: int
    cache_room: CacheRoom
    buffer: WriteBuffer
    lost_records: LostRecords
    reads: asyncio.Semaphore
    """Reads may take long, and there may be many: this leaves connections for appends."""
    held_reads: HeldReads
    preparation: Executor
    """Writes rows out for the next transactions of all logs: one thread, for interpreted code runs in one at a time."""

    @property
    def dialect(self) -> Dialect:
        return self.group.primary.database.dialect

    @property
    def takes_writes(self) -> bool:
        """Whether, as far as is known, changes succeed."""
        return self.generation == self.group.generation and self.group.takes_writes

    @property
    def why_no_writes(self) -> str:
        """The reason while changes do not succeed."""
        if self.takes_writes:
            return "it was opened to be read, and is about to be taken over"
        if self.generation != self.group.generation:
            return f'another server is the primary of the database group "{self.group.name}" now'
        return self.group.why_no_writes

    def pauses(self) -> RetryPauses:
        return RetryPauses(self.retry_ms, self.timer)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that only reads, on the primary; StorageError if that does not answer."""
        return await self._read(lambda: self.group.read(work))

    async def read_anywhere(self, work: Callable[[Connection], T], from_replica: Callable[[Connection], T]) -> T:
        """Runs `work` on the primary; if that does not answer, `from_replica` on a replica, which may be behind."""
        return await self._read(lambda: self.group.read_anywhere(work, from_replica))

    async def read_replica(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that only reads on a replica; StorageError if none answers."""
        return await self._read(lambda: self.group.read_replica(work))

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self.reads:
            try:
                return await call()
            except GroupAway as error:
                raise storage_error(error) from error
            except (Unreachable, Contended):
                # The connection may have been lost while it was idle. Readers try again later by themselves.
                try:
                    return await call()
                except DatabaseError as error:
                    raise storage_error(error) from error
            except DatabaseError as error:
                raise storage_error(error) from error

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction on the primary, once."""
        return await self.group.change(work, self.generation)

    async def change(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that may be repeated, until it succeeds or the time is over; StorageError then."""
        try:
            return await self.attempt(lambda: self.run(work))
        except DatabaseError as error:
            raise storage_error(error) from error

    async def define(self, work: Callable[[Connection], T]) -> T:
        """Runs statements that make, change and drop tables, like `change`."""
        try:
            return await self.attempt(lambda: self.group.define(work, self.generation))
        except DatabaseError as error:
            raise storage_error(error) from error

    async def attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats what may be repeated, until it succeeds, the time is over, or the group is known to be away."""
        pauses = self.pauses()
        while True:
            try:
                return await call()
            except GroupAway:
                raise
            except (Unreachable, Contended):
                if pauses.is_over:
                    raise
                await pauses.pause()


def storage_error(error: DatabaseError) -> StorageError:
    return StorageError(f"the database refused or did not answer: {error}")
