"""A group of database servers: a primary, and replicas that the database keeps equal to it.

Rules (`docs/internals/database-groups.md`):

- The group asks every server once a second, on a connection of its own and with a limit of two seconds: does it answer,
  does it take writes, which heartbeat does it have. Two failures in a row, or work that could not reach it and one
  failure, and it is down; one answer, and it is up.
- Changes go to the primary. While it is down or takes no writes they fail at once, and nothing is sent; but the only
  server of the only group is tried all the same, because there is nothing else.
- Reads go to the primary; if it is down or does not answer, to the replica that is least behind.
- Every change names its generation: after a change of primary it must not reach the new one by mistake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.background_loop import run_forever
from penstock.clock import Clock, SystemClock
from penstock.logs import fields
from penstock.sql.database import Connection, Database
from penstock.sql.errors import DatabaseError, GroupAway, ReadOnly, SchemaChanged, Unreachable

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_TABLE = "queue_heartbeat"
"""One row: the controller's clock in milliseconds when it was written."""

_ASK_S = 1.0
_ASK_LIMIT_MS = 2000
_FAILURES_OF_A_DOWN_SERVER = 2
_READ_LIMIT_MS = 3000
"""Of a read from a primary that has replicas: they can answer instead."""


class ServerAnswer(NamedTuple):
    """What a server says of itself."""

    takes_writes: bool
    heartbeat_ms: int | None
    has_lost_semi_sync: bool


class GroupServer:
    """One server: its connections for work, one for questions, and what is known of it."""

    def __init__(self, database: Database) -> None:
        """Closes the database, if it is closed itself."""
        self.database = database
        self.address = database.address
        self.takes_writes = True
        """As far as is known: a server that was not asked yet is taken to be well."""
        self.heartbeat_ms: int | None = None
        """The last one that it has."""
        self.has_lost_semi_sync = False
        self.was_asked = False
        self.is_known_since_change = False
        """Whether what is known of it was found out after the last change of the group."""
        self.error = ""
        """Why it did not answer the last question."""
        self._questions = Database.unconnected(self.address, connections=1, timeout_ms=_ASK_LIMIT_MS)
        self._failures = 0
        self._changes = 0
        self._is_due = asyncio.Event()

    @property
    def is_down(self) -> bool:
        return self._failures >= _FAILURES_OF_A_DOWN_SERVER

    def suspect(self) -> None:
        """Work could not reach it: asks it at once, and one more failure means that it is down."""
        self._failures = max(self._failures, _FAILURES_OF_A_DOWN_SERVER - 1)
        self.ask_soon()

    def ask_soon(self) -> None:
        self._is_due.set()

    def ask_after_change(self) -> None:
        """The group has changed: what is known of the server may be from before, and says nothing of what is now."""
        self.is_known_since_change = False
        self._changes += 1
        self.ask_soon()

    async def ask(self, *, has_replicas: bool) -> None:
        """Finds out how it is."""
        changes = self._changes
        try:
            answer = await self._asked(has_replicas=has_replicas)
        except DatabaseError as error:
            self.error = str(error)
            self._failures += 1
            is_known = self.is_down
        else:
            self.takes_writes, self.heartbeat_ms, self.has_lost_semi_sync = answer
            self.error, self._failures, is_known = "", 0, True
        finally:
            self.was_asked = True
        if is_known and changes == self._changes:
            self.is_known_since_change = True

    async def _asked(self, *, has_replicas: bool) -> ServerAnswer:
        question = partial(_answer, has_replicas=has_replicas)
        try:
            return await self._questions.run(partial(question, has_heartbeat=has_replicas), is_read_only=True)
        except SchemaChanged:
            # The table of the heartbeat does not exist yet.
            return await self._questions.run(partial(question, has_heartbeat=False), is_read_only=True)

    async def until_due(self) -> None:
        """Returns when it is time for the next question."""
        try:
            async with asyncio.timeout(_ASK_S):
                await self._is_due.wait()
        except TimeoutError:
            pass
        self._is_due.clear()

    async def write_heartbeat(self, now_ms: int) -> None:
        columns = ("id", "written_ms")
        await self._questions.run(
            lambda connection: connection.upsert(HEARTBEAT_TABLE, columns[:1], columns, [(1, now_ms)])
        )

    async def close(self) -> None:
        await asyncio.gather(self.database.close(), self._questions.close())


class DatabaseGroup:
    """The servers under one name. `start` begins to ask them; `close` ends that, and closes them."""

    def __init__(
        self,
        name: str,
        servers: Sequence[GroupServer],
        primary: int = 0,
        generation: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.servers = tuple(servers)
        self.primary = self.servers[primary]
        self.generation = generation
        """How often another server has become the primary."""
        self.is_alone = False
        """Whether there is no other group."""
        self._clock = clock or SystemClock()
        self._asking: dict[GroupServer, asyncio.Task[None]] = {}
        self._on_change: list[Callable[[DatabaseGroup], None]] = []

    @property
    def replicas(self) -> list[GroupServer]:
        return [server for server in self.servers if server is not self.primary]

    @property
    def connections(self) -> int:
        """How many each server has at most."""
        return self.primary.database.connections

    @property
    def takes_writes(self) -> bool:
        """Whether, as far as is known, changes succeed."""
        return self._is_without_alternative or (not self.primary.is_down and self.primary.takes_writes)

    @property
    def _is_without_alternative(self) -> bool:
        """Whether to try for a while instead of failing at once: there is no other server that could answer."""
        return self.is_alone and len(self.servers) == 1

    @property
    def why_no_writes(self) -> str:
        """The reason while it takes none."""
        primary = self.primary
        if primary.is_down:
            return f'the primary {primary.address} of the database group "{self.name}" is down: {primary.error}'
        return f'the primary {primary.address} of the database group "{self.name}" takes no writes'

    def lag_ms(self, replica: GroupServer) -> int | None:
        """How far a replica is behind; None if that is unknown."""
        return None if replica.heartbeat_ms is None else max(0, self._clock.now_ms() - replica.heartbeat_ms)

    def readable_replicas(self) -> list[GroupServer]:
        """Those that answer, the one that is least behind first.

        Once there was another primary, one that takes writes may be that one, which has records of its own.
        """
        up = [
            replica
            for replica in self.replicas
            if not replica.is_down and not (self.generation > 0 and replica.takes_writes)
        ]
        return sorted(up, key=lambda replica: -(replica.heartbeat_ms or 0))

    def on_change(self, callback: Callable[[DatabaseGroup], None]) -> None:
        """Calls back when the group begins or ceases to take writes."""
        self._on_change.append(callback)

    def start(self) -> None:
        for server in self.servers:
            if server not in self._asking:
                self._asking[server] = asyncio.get_running_loop().create_task(
                    run_forever(f"questions to {server.address}", partial(self._ask, server)),
                    name=f"ask {server.address}",
                )

    def replace(self, servers: Sequence[GroupServer], primary: int, generation: int) -> list[GroupServer]:
        """Becomes what the metadata says; gives the servers that are not in it any more, for the caller to close."""
        gone = [server for server in self.servers if server not in servers]
        former = self.primary
        self.servers, self.primary, self.generation = tuple(servers), servers[primary], generation
        for server in gone:
            self._asking.pop(server).cancel()
        if self.primary is not former:
            former.database.interrupt(f"{self.primary.address} is the primary now")
        for server in servers:
            server.ask_after_change()
        self.start()
        return gone

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._asking.clear()
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _ask(self, server: GroupServer) -> None:
        was_well, was_down = self.takes_writes, server.is_down
        await server.ask(has_replicas=len(self.servers) > 1)
        if server.is_down and not was_down:
            logger.error("a database server is down", extra=fields(group=self.name, reason=server.error))
            if self.readable_replicas():
                # Readers that wait for it can be answered by other servers, or told.
                server.database.interrupt("the server is down")
        elif was_down and not server.is_down:
            logger.warning("a database server is up again", extra=fields(group=self.name, server=str(server.address)))
        if self.takes_writes != was_well:
            if not server.is_down and server is self.primary:
                logger.warning(
                    "a database group takes writes again" if self.takes_writes else "a database group takes no writes",
                    extra=fields(group=self.name, primary=str(server.address)),
                )
            for callback in self._on_change:
                callback(self)
        await server.until_due()

    # Work

    def check_takes_writes(self, generation: int) -> None:
        """GroupAway if a change would not succeed."""
        if generation != self.generation:
            raise GroupAway(f'another server is the primary of the database group "{self.name}" now')
        if not self.takes_writes:
            raise GroupAway(self.why_no_writes)

    async def change(self, work: Callable[[Connection], T], generation: int) -> T:
        """Runs a transaction on the primary."""
        self.check_takes_writes(generation)
        return await self._told(self.primary, lambda database: database.run(work))

    async def define(self, work: Callable[[Connection], T], generation: int) -> T:
        """Runs statements that make, change and drop tables, on the primary."""
        self.check_takes_writes(generation)
        return await self._told(self.primary, lambda database: database.run_ddl(work))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that only reads, on the primary."""
        if self.primary.is_down and not self._is_without_alternative:
            raise GroupAway(self.why_no_writes)
        return await self._told(self.primary, lambda database: database.run(work, is_read_only=True))

    async def read_anywhere(self, work: Callable[[Connection], T], from_replica: Callable[[Connection], T]) -> T:
        """Runs `work` on the primary; if that does not answer, `from_replica` on a replica, which may be behind."""
        error: Unreachable | None = None
        if not self.primary.is_down or self._is_without_alternative:
            limit_ms = _READ_LIMIT_MS if self.readable_replicas() else None
            try:
                return await self._told(
                    self.primary, lambda database: database.run(work, is_read_only=True, timeout_ms=limit_ms)
                )
            except Unreachable as found:
                error = found
        try:
            return await self.read_replica(from_replica)
        except GroupAway:
            raise error or GroupAway(self.why_no_writes) from None

    async def read_replica(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that only reads on the replica that is least behind; GroupAway if none answers."""
        for replica in self.readable_replicas():
            try:
                return await self._told(
                    replica, lambda database: database.run(work, is_read_only=True, timeout_ms=_READ_LIMIT_MS)
                )
            except Unreachable:
                continue
        raise GroupAway(f'no replica of the database group "{self.name}" answers')

    async def _told(self, server: GroupServer, call: Callable[[Database], Awaitable[T]]) -> T:
        """Runs work, and takes note if the server could not be reached or takes no writes."""
        try:
            return await call(server.database)
        except Unreachable:
            server.suspect()
            raise
        except ReadOnly:
            server.ask_soon()
            raise


def _answer(connection: Connection, *, has_replicas: bool, has_heartbeat: bool) -> ServerAnswer:
    ((takes_writes,),) = connection.execute(connection.dialect.takes_writes)
    has_lost_semi_sync = has_replicas and connection.dialect.has_lost_semi_sync(connection.execute)
    found = connection.execute(f"SELECT written_ms FROM {HEARTBEAT_TABLE} WHERE id = 1") if has_heartbeat else []
    return ServerAnswer(bool(takes_writes), found[0][0] if found else None, has_lost_semi_sync)
