"""The sender of one shard: reads what is due, forwards it, settles it.

Take over, then page after page. Whatever goes wrong, it takes over again: only that tells what was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.delay_database import DelayDatabase, DueRow
from penstock.bridge.forwarded_message import refused_forward, with_due_time
from penstock.bridge.forwarder import Forwarder, RefusedError
from penstock.bridge.leases import Lease, holds
from penstock.bridge.options import StoreOptions
from penstock.bridge.target_topics import TargetTopics
from penstock.clock import Clock
from penstock.sdk.errors import ClientError
from penstock.sdk.ports import Outgoing
from penstock.sdk.problem_log import OngoingProblem
from penstock.sql.errors import DatabaseError

log = logging.getLogger(__name__)

T = TypeVar("T")

_ROUND_PAGES = 100
"""After so many the search for due rows begins at the start: rows were inserted behind it."""
_AGAIN_S = 0.5
"""Before it takes over again."""
_START = (0, 0)


class _LeaseLost(Exception):
    """Another bridge has the shard, or may have."""


class ShardSender:
    """Runs until it is stopped or the lease is lost."""

    def __init__(
        self,
        database: DelayDatabase,
        lease: Lease,
        member: str,
        forwarder: Forwarder,
        topics: TargetTopics,
        options: StoreOptions,
        metrics: BridgeMetrics,
        clock: Clock,
    ) -> None:
        self.lease = lease
        self._database = database
        self._shard = lease.shard
        self._member = member
        self._forwarder = forwarder
        self._topics = topics
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._stop = asyncio.Event()
        name = f"{database.layout.index}/{self._shard}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-bridge-{name}")
        self.problem = OngoingProblem(
            log, f"shard {name}: due messages are not forwarded; retrying", f"shard {name}: forwarding works again"
        )
        self._most = options.batch
        """Rows a page."""
        self._is_refused = False
        """Whether one of the last page was refused, and nothing tells which."""
        self._is_unsure = False
        """Whether the last page may have been sent, and nothing tells."""

    def stop(self) -> None:
        """The page that is being sent is finished."""
        self._stop.set()

    async def run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    await self._take_over()
                    await self._send_pages()
                except _LeaseLost:
                    return
                except (ClientError, DatabaseError) as error:
                    self.problem.report(error)
                    await self._pause(_AGAIN_S)
        finally:
            await self._in_thread(self._forwarder.close)
            self._thread.shutdown(wait=False)

    async def _take_over(self) -> None:
        self._check_lease()
        sent = await self._in_thread(partial(self._forwarder.start, self._database.incarnation(self._shard)))
        # A bridge that was paused until here has fenced its successor, and must not go on.
        still_ours = await self._database.database.run(
            lambda connection: holds(connection, self._database.names, self._member, self._shard, self.lease.epoch),
            is_read_only=True,
        )
        if not still_ours:
            raise _LeaseLost
        if sent:
            found = await self._database.settle(self._shard, sent, has_schedules=True)
            self._metrics.repeats_avoided.inc(found)

    async def _send_pages(self) -> None:
        after, pages = _START, 0
        while not self._stop.is_set():
            now_ms = self._clock.now_ms()
            rows = await self._database.read_due(self._shard, after, now_ms, self._most, self._options.batch_bytes)
            if rows:
                await self._send_page(rows)
                pages += 1
                last = rows[-1].key
                is_settled = not self._is_refused and pages < _ROUND_PAGES
                after, pages = ((last.due_ms, last.seq), pages) if is_settled else (_START, 0)
            elif after != _START:
                after, pages = _START, 0
            else:
                self._check_lease()
                await self._wait_for_due(now_ms)
            self.problem.end()

    async def _wait_for_due(self, now_ms: int) -> None:
        next_ms = await self._database.next_due_ms(self._shard, now_ms)
        wait_ms = self._options.poll_ms
        if next_ms is not None:
            wait_ms = min(wait_ms, max(1, next_ms - self._clock.now_ms()))
        await self._pause(wait_ms / 1000)

    async def _send_page(self, rows: Sequence[DueRow]) -> None:
        """Send a page. If one of its messages is refused the next page is half as long, until that one is alone."""
        targets = {row.topic for row in rows} - {self._options.dead_topic}
        missing = await self._in_thread(partial(self._topics.missing, targets))
        known = [row for row in rows if row.topic not in missing]
        self._is_refused = False
        if known:
            try:
                await self._forward([_message_of(row) for row in known], known)
                await self._settle(known)
                self._most = min(self._options.batch, self._most * 2)
            except RefusedError as refused:
                await self._narrow(known, refused)
        for row in rows:
            if row.topic in missing:
                await self._bury(row, f"topic {row.topic} does not exist")

    async def _narrow(self, rows: Sequence[DueRow], refused: RefusedError) -> None:
        if refused.is_spent:
            await self._take_over()
        await self._settle([row for number, row in enumerate(rows) if number in refused.sent])
        left = [row for number, row in enumerate(rows) if number not in refused.sent]
        if len(left) == 1:
            await self._bury(left[0], str(refused))
        else:
            self._is_refused = True
            self._most = max(1, len(left) // 2)

    async def _bury(self, row: DueRow, reason: str) -> None:
        """Send a row to the dead-letter topic; without its value if it is too large even there."""
        message, topic = _message_of(row), self._options.dead_topic
        letters = [
            refused_forward(message, topic, reason),
            replace(
                refused_forward(message, topic, f"{reason}; the value of {len(row.value or b'')} bytes is left out"),
                value=None,
            ),
        ]
        for letter in letters:
            try:
                await self._forward([letter], [row])
                break
            except RefusedError as refused:
                if refused.is_spent:
                    await self._take_over()
                again = refused
        else:
            raise ClientError(f"the dead-letter topic {topic} accepts no messages: {again}")
        await self._settle([row], is_dead=True)

    async def _forward(self, messages: Sequence[Outgoing], rows: Sequence[DueRow]) -> None:
        self._check_lease()
        if self._is_unsure:
            self._metrics.repeats_possible.inc(len(rows))
        self._is_unsure = not self._options.is_transactional
        await self._in_thread(partial(self._forwarder.forward, messages, [row.key for row in rows]))

    async def _settle(self, rows: Sequence[DueRow], *, is_dead: bool = False) -> None:
        if not rows:
            return
        now_ms = self._clock.now_ms()
        for row in rows:
            if is_dead or row.deliver_at_ms is None:
                self._metrics.dead_lettered.inc()
            else:
                self._metrics.forwarded.inc()
                self._metrics.lateness.observe(max(0, now_ms - row.deliver_at_ms) / 1000)
        has_schedules = any(row.schedule is not None for row in rows)
        await self._database.settle(self._shard, [row.key for row in rows], has_schedules=has_schedules)
        self._is_unsure = False

    def _check_lease(self) -> None:
        if not self.lease.is_valid:
            raise _LeaseLost

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _message_of(row: DueRow) -> Outgoing:
    return Outgoing(
        topic=row.topic,
        value=row.value,
        key=row.message_key,
        headers=with_due_time(row.headers, row.deliver_at_ms),
        partition=row.partition,
    )
