"""A session in the database: one after the other, each renewed as long as this process runs.

**How long the session certainly holds.** The database lets it end a session's time after the renewal *reached* it, by
its own clock. This process counts from the moment before it *sent* the renewal, by its monotonic clock, and only three
quarters of the time: the rest is for clocks that go at different speeds.

**When others may be taken for gone.** After the database was away, or its clock was set ahead, all sessions may be over
by that clock, although every process is alive. A process that notices this gives the others a session's time to renew
theirs before it ends any session. When the clock was set back, sessions of dead processes would end too late:
`SqlTree.shorten_sessions`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable

from penstock.clock import Clock
from penstock.cluster.coordination.contract import Unsubscribe
from penstock.cluster.coordination.lease_renewals import LeaseRenewals
from penstock.cluster.coordination.sql_tree import SqlTree
from penstock.cluster.coordination.watchers import Registry
from penstock.errors import CoordinationError
from penstock.logs import fields
from penstock.sql.database import Database
from penstock.sql.errors import DatabaseError

log = logging.getLogger(__name__)

HELD_SHARE = 0.75
RENEWALS_PER_SESSION = 6
JUMP_SHARE = 0.125
"""Set ahead by more than this part of a session, a clock has jumped."""
_RETRY_S = 0.1


class SqlSession:
    """Gets a new session by itself when one is lost; `close` ends it for good."""

    def __init__(self, database: Database, tree: SqlTree, timeout_ms: int, clock: Clock) -> None:
        self._database = database
        self._tree = tree
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._id = ""
        self._lease_until_ms = -math.inf
        self.renewals = LeaseRenewals()
        self._is_reached = True
        self._ends_others_from_ms = -math.inf
        # How far the database's clock was ahead of ours at most, when it was last read.
        self._ahead_ms = math.inf
        self._is_closed = False
        self._due = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._on_lost: Registry[Callable[[], None]] = Registry()

    @property
    def id(self) -> str:
        return self._id

    @property
    def lease_until_ms(self) -> float:
        return self._lease_until_ms

    @property
    def may_end_others(self) -> bool:
        """Whether sessions whose time is over by the database's clock may be taken for gone."""
        return self._is_reached and self._clock.monotonic_ms() >= self._ends_others_from_ms

    def on_lost(self, callback: Callable[[], None]) -> Unsubscribe:
        return self._on_lost.add(callback)

    def note_contact(self, is_reached: bool) -> None:
        """The database has answered, or has not."""
        if is_reached and not self._is_reached:
            self._spare_others()
        self._is_reached = is_reached

    def note_clock(self, now_us: int, asked_ms: float) -> None:
        """Takes the time of the database's clock: the request left at `asked_ms`, and the answer is here now."""
        answered_ms = self._clock.monotonic_ms()
        if now_us / 1000 - answered_ms > self._ahead_ms + self._timeout_ms * JUMP_SHARE:
            log.warning("the clock of the database was set ahead", extra=fields(database=str(self._database.address)))
            self._spare_others()
        self._ahead_ms = now_us / 1000 - asked_ms

    def look_after(self) -> None:
        """There is reason to think that the session is lost."""
        self._due.set()

    def _spare_others(self) -> None:
        self._ends_others_from_ms = self._clock.monotonic_ms() + self._timeout_ms

    async def start(self) -> None:
        """Returns with a session."""
        await self._begin()
        self._keeping = asyncio.create_task(self._keep_alive(), name="penstock-sql-keep-alive")

    async def close(self, limit_ms: int) -> None:
        """Ends the session, and with it its leases; a database that does not answer is not waited for."""
        self._is_closed = True
        self._release()
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        try:
            await self._database.run(
                lambda connection: self._tree.end_session(connection, self._id), timeout_ms=limit_ms
            )
        except (DatabaseError, CoordinationError) as error:
            log.warning("cannot end the session, leaving it to expire", extra=fields(reason=str(error)))

    async def _begin(self) -> None:
        session, sent_ms = uuid.uuid4().hex, self._clock.monotonic_ms()
        clock = await self._database.run(
            lambda connection: self._tree.begin_session(connection, session, self._timeout_ms),
            timeout_ms=self._timeout_ms,
        )
        self._id = session
        self._hold_from(sent_ms, clock)

    async def _renew(self) -> None:
        session, sent_ms = self._id, self._clock.monotonic_ms()
        clock = await self._database.run(
            lambda connection: self._tree.renew_session(connection, session, self._timeout_ms),
            # In time for another attempt.
            timeout_ms=max(1, self._timeout_ms // 3),
        )
        if clock is not None:
            self._hold_from(sent_ms, clock)
            return
        log.warning("lost the session in the database", extra=fields(database=str(self._database.address)))
        self._id = ""
        self._release()
        for callback in self._on_lost.entries():
            asyncio.get_running_loop().call_soon(callback)
        await self._begin()

    def _hold_from(self, sent_ms: float, clock: int) -> None:
        if not self._is_closed:
            until_ms = sent_ms + self._timeout_ms * HELD_SHARE
            self._lease_until_ms = max(self._lease_until_ms, until_ms)
            self.renewals.note(clock, until_ms)

    def _release(self) -> None:
        self._lease_until_ms = -math.inf
        self.renewals.forget()

    async def _keep_alive(self) -> None:
        pause_s = self._timeout_ms / 1000 / RENEWALS_PER_SESSION
        while True:
            try:
                async with asyncio.timeout(pause_s if self._is_reached else min(pause_s, _RETRY_S)):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            try:
                await (self._renew() if self._id else self._begin())
            except (DatabaseError, CoordinationError) as error:
                if self._is_reached:
                    log.warning("cannot renew the session, retrying", extra=fields(reason=str(error)))
                self.note_contact(False)
            else:
                self.note_contact(True)
