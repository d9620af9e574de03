"""The poller of a cluster: reads it once a round, however many users look, and keeps the last snapshot.

Rules:
- One round at a time, one call at a time; each blocks in a thread. The next round begins `interval_ms` after the last
  one's end, so it reads a slow cluster less often.
- Ends of partitions come in slices, groups in turns (`PollingSettings`): a cluster of any size costs a bounded number
  of requests a round.
- The snapshot reports failures and keeps what earlier rounds learned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.admin import AdminError, Cluster, GroupPause, TopicPartition, UnreachableError
from penstock.background_loop import run_forever
from penstock.clock import Clock
from penstock.console.polling.cluster_link import ClusterLink
from penstock.console.polling.cluster_view import ClusterView
from penstock.console.polling.snapshot import (
    ClusterSnapshot,
    DatabaseServerRow,
    DiskRow,
    Finding,
    Severity,
    no_snapshot,
)
from penstock.console.settings import PollingSettings
from penstock.logs import fields

logger = logging.getLogger(__name__)

_PARTITIONS_PER_CALL = 2_000
_AFTER_FAILURE_MS = 2_000

Listener = Callable[[ClusterSnapshot], Awaitable[None]]


class Poller:
    """Polls one cluster from `start` to `close`."""

    def __init__(self, link: ClusterLink, settings: PollingSettings, clock: Clock) -> None:
        self._link = link
        self._settings = settings
        self._clock = clock
        self._view = ClusterView(link.name)
        self._round = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Event()
        self._listeners: list[Listener] = []
        self._timer_prefixes: Callable[[], Sequence[str]] = tuple
        self.snapshot = no_snapshot(link.name)

    def on_snapshot(self, listener: Listener) -> None:
        """Called after each round, one listener after the other."""
        self._listeners.append(listener)

    def watch_timers(self, prefixes: Callable[[], Sequence[str]]) -> None:
        """Has rounds look for late messages in topics that begin with one of these prefixes. Looking costs a client for
        each topic, so rounds look only at topics that an alert rule watches.
        """
        self._timer_prefixes = prefixes

    def start(self) -> None:
        work = run_forever(f"poller {self._link.name}", self._step)
        self._task = asyncio.get_running_loop().create_task(work, name=f"poller {self._link.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def next_snapshot(self) -> ClusterSnapshot:
        """The one after this; waits for it."""
        turn = self._turn
        await turn.wait()
        return self.snapshot

    def hasten(self) -> None:
        """After a change: the next round begins soon. Asking often does not make rounds more frequent than one a
        second.
        """
        self._hasten.set()

    @property
    def _hasten(self) -> asyncio.Event:
        if not hasattr(self, "_hastened"):
            self._hastened = asyncio.Event()
        return self._hastened

    async def _step(self) -> None:
        await self._poll()
        for listener in self._listeners:
            await listener(self.snapshot)
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()
        await asyncio.sleep(min(1.0, self._settings.interval_ms / 1000))
        try:
            async with asyncio.timeout(max(0.0, self._settings.interval_ms / 1000 - 1.0)):
                await self._hasten.wait()
        except TimeoutError:
            pass
        self._hasten.clear()

    async def _poll(self) -> None:
        began_ms = self._clock.monotonic_ms()
        self._round += 1
        try:
            await self._link.run(self._ask_topics)
            await self._link.run(self._ask_groups)
            if self._is_turn(self._settings.starts_every_rounds):
                await self._link.run(self._ask_slow)
            if self._is_turn(self._settings.databases_every_rounds):
                await self._link.run(self._ask_databases)
            prefixes = self._timer_prefixes()
            await self._link.run(lambda admin: self._ask_timers(admin, prefixes))
        except UnreachableError as error:
            self._fail(error)
            return
        except AdminError as error:
            self._fail(error)
            return
        took_ms = int(self._clock.monotonic_ms() - began_ms)
        round, now_ms = self._round, self._clock.now_ms()
        self.snapshot = await self._link.run(lambda _: self._view.snapshot(round, now_ms, took_ms))

    def _is_turn(self, every_rounds: int) -> bool:
        return every_rounds == 1 or self._round % every_rounds == 1

    def _fail(self, error: AdminError) -> None:
        logger.warning(
            "a cluster does not answer the console", extra=fields(cluster=self._link.name, problem=error.message)
        )
        before = self.snapshot
        text = f"the cluster does not answer: {error.message}"
        self.snapshot = ClusterSnapshot(
            cluster=before.cluster,
            round=self._round,
            at_ms=before.at_ms,
            is_reachable=False,
            problem=text,
            topics=before.topics,
            groups=before.groups,
            brokers=before.brokers,
            partitions=before.partitions,
            findings=(Finding(Severity.ERROR, "cluster", before.cluster, text),),
            rate_per_s=None,
            databases=before.databases,
            late_timers=before.late_timers,
        )

    # Below this line everything runs in a thread, one at a time.

    def _ask_topics(self, admin: Cluster) -> None:
        admin.require_listener()
        self._view.problems = []
        self._view.take_topics(admin.topics.list(include_internal=True))
        self._view.brokers = admin.brokers.list()
        topics = self._view.topics_to_read(self._settings.offsets_per_round)
        wanted = [
            TopicPartition(topic.name, partition.index)
            for topic in topics
            for partition in topic.partitions
            if not partition.is_unavailable
        ]
        found: dict[TopicPartition, int] = {}
        for first in range(0, len(wanted), _PARTITIONS_PER_CALL):
            told = admin.offsets.latest(wanted[first : first + _PARTITIONS_PER_CALL])
            found.update(told.values)
            self._note(told.errors, "ends of partitions")
        self._view.take_ends(topics, found, self._clock.monotonic_ms())
        unknown = [at for at in found if at not in self._view.starts]
        self._ask_starts(admin, unknown[:_PARTITIONS_PER_CALL])

    def _ask_groups(self, admin: Cluster) -> None:
        listed = admin.groups.list()
        self._view.take_states({group.name: group.state for group in listed.groups})
        self._view.problems += [f"groups: {error.message}" for error in listed.errors]
        chosen = self._view.groups_to_read(self._settings.groups_per_round)
        if not chosen:
            return
        described = admin.groups.describe(chosen)
        committed = admin.groups.committed(chosen)
        pauses = admin.groups.pauses(chosen)
        self._note({**described.errors, **committed.errors}, "groups")
        now_ms = self._clock.now_ms()
        for name in chosen:
            if name in described.values and name in committed.values:
                offsets = {at: each.offset for at, each in committed.values[name].items()}
                members = len(described.values[name].members)
                self._view.take_group(name, now_ms, members, offsets, pauses.values.get(name, GroupPause()))

    def _ask_slow(self, admin: Cluster) -> None:
        self._ask_starts(admin, list(self._view.ends))
        try:
            told = admin.log_dirs.describe()
        except AdminError as error:
            self._view.problems.append(f"disks: {error.message}")
            return
        self._note(told.errors, "disks")
        sizes: dict[TopicPartition, int] = {}
        for folders in told.values.values():
            for folder in folders:
                for at, size in folder.sizes.items():
                    sizes[at] = sizes.get(at, 0) + size
        self._view.sizes = sizes
        self._view.disks = {
            id: tuple(DiskRow(each.path, each.used_bytes, each.total_bytes, each.usable_bytes) for each in folders)
            for id, folders in told.values.items()
        }

    def _ask_databases(self, admin: Cluster) -> None:
        try:
            groups = admin.databases.list()
        except AdminError as error:
            # A cluster without databases, or of another make, need not know the question.
            if self._view.databases:
                self._view.problems.append(f"databases: {error.message}")
            return
        self._view.databases = tuple(
            DatabaseServerRow(
                group.name, each.name, each.is_primary, each.state or "unknown", each.lag_ms, each.problem
            )
            for group in groups
            for each in group.servers
        )

    def _ask_timers(self, admin: Cluster, prefixes: Sequence[str]) -> None:
        if not prefixes:
            self._view.late_timers = {}
            return
        for topic in self._view.timer_topics_to_read(prefixes, self._settings.timer_topics_per_round):
            now_ms = self._clock.now_ms()
            try:
                found = admin.timers.list(topic, due_until_ms=now_ms, limit=1).items
            except UnreachableError:
                raise
            except AdminError as error:
                self._view.problems.append(f"delayed messages of {topic}: {error.message}")
                continue
            if found:
                self._view.late_timers[topic] = now_ms - found[0].due_ms
            else:
                self._view.late_timers.pop(topic, None)

    def _ask_starts(self, admin: Cluster, wanted: list[TopicPartition]) -> None:
        for first in range(0, len(wanted), _PARTITIONS_PER_CALL):
            told = admin.offsets.earliest(wanted[first : first + _PARTITIONS_PER_CALL])
            self._view.starts.update(told.values)

    def _note(self, errors: object, what: str) -> None:
        if isinstance(errors, dict) and errors:
            first = next(iter(errors.values()))
            self._view.problems.append(f"{what}: {len(errors)} did not answer, the first: {first.message}")
