"""The sender of one shard: reads what is due, forwards it, settles it.

Take over, then page after page. Whatever goes wrong, it takes over again: only that tells what was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.delay_database import DelayDatabase, DueRow
from penstock.bridge.forwarder import Forwarder, RefusedError
from penstock.bridge.forwarding import refused_forward, with_due_time
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
            log, f"shard {name}: what is due is not forwarded; retrying", f"shard {name}: forwarding works again"
        )
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
            rows = await self._database.read_due(
                self._shard, after, now_ms, self._options.batch, self._options.batch_bytes
            )
            if rows:
                await self._send_page(rows)
                self.problem.end()
                pages += 1
                last = rows[-1].key
                after = (last.due_ms, last.seq) if pages < _ROUND_PAGES else _START
                pages %= _ROUND_PAGES
                continue
            self.problem.end()
            if after != _START:
                after, pages = _START, 0
                continue
            self._check_lease()
            next_ms = await self._database.next_due_ms(self._shard, now_ms)
            wait_ms = self._options.poll_ms
            if next_ms is not None:
                wait_ms = min(wait_ms, max(1, next_ms - self._clock.now_ms()))
            await self._pause(wait_ms / 1000)

    async def _send_page(self, rows: Sequence[DueRow]) -> None:
        existing = await self._in_thread(
            lambda: {topic: self._topics.exists(topic) for topic in {row.topic for row in rows}}
        )
        known = [row for row in rows if existing[row.topic] or row.topic == self._options.dead_topic]
        await self._deliver(known)
        for row in rows:
            if not existing[row.topic] and row.topic != self._options.dead_topic:
                await self._bury(row, f"topic {row.topic} does not exist")

    async def _deliver(self, rows: Sequence[DueRow]) -> None:
        """Send rows that belong together, or, if one of them is refused, all the others."""
        if not rows:
            return
        try:
            await self._forward([_message_of(row) for row in rows], rows)
        except RefusedError as refused:
            sent = [row for number, row in enumerate(rows) if number in refused.sent]
            await self._settle(sent)
            left = [row for number, row in enumerate(rows) if number not in refused.sent]
            if len(left) == 1:
                await self._bury(left[0], str(refused))
                return
            half = len(left) // 2
            await self._deliver(left[:half])
            await self._deliver(left[half:])
            return
        await self._settle(rows)

    async def _bury(self, row: DueRow, reason: str) -> None:
        """Send a row to the dead-letter topic; without its value if it is too large even there."""
        letter = refused_forward(_message_of(row), self._options.dead_topic, reason)
        try:
            await self._forward([letter], [row])
        except RefusedError as refused:
            without_value = f"{reason}; the value of {len(row.value or b'')} bytes is left out: {refused}"
            smaller = Outgoing(
                topic=letter.topic,
                value=None,
                headers=refused_forward(_message_of(row), letter.topic, without_value).headers,
            )
            try:
                await self._forward([smaller], [row])
            except RefusedError as again:
                raise ClientError(f"the dead-letter topic {letter.topic} accepts no messages: {again}") from None
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
