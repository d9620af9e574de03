"""A running bridge: assembles its parts, starts and stops them, and says how it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.bridge.bridge_metrics import BridgeMetrics
from penstock.bridge.delay_database import DelayDatabase
from penstock.bridge.forwarder import Forwarder, PlainForwarder, TransactionalForwarder, new_member_id
from penstock.bridge.intake import Intake
from penstock.bridge.intake_message import IntakeRules
from penstock.bridge.leases import Lease, LeaseRound, release, renew
from penstock.bridge.level_forwarder import LevelForwarder
from penstock.bridge.options import BridgeOptions, LevelOptions, StoreOptions
from penstock.bridge.shard_sender import ShardSender
from penstock.bridge.table_plan import PlanKind
from penstock.bridge.tables import Layout
from penstock.bridge.target_topics import TargetTopics
from penstock.clock import Clock, SystemClock
from penstock.config.address import Address
from penstock.errors import ConfigError
from penstock.net.http_server import HttpServer
from penstock.sdk.counters import SendTally
from penstock.sdk.hooks.base import HookChain
from penstock.sdk.kafka.connection import ConnectionSettings
from penstock.sdk.kafka.group_consumer import KafkaGroupConsumer
from penstock.sdk.kafka.topic_admin import TopicAdmin
from penstock.sdk.kafka.transaction_committer import KafkaTransactionCommitter
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.subscription_options import validate_options
from penstock.sdk.send.observed_producer import SendObserver
from penstock.sql.database import Database
from penstock.sql.errors import DatabaseError

log = logging.getLogger(__name__)

CLIENT_ID = "penstock-delay-bridge"
_DATABASE_TIMEOUT_MS = 10_000
_DATABASE_PATIENCE_MS = 30_000
_CONNECTIONS = 8
_INCARNATION_DIGITS = 8
"""In a transactional id: bridges that have other tables do not fence one another."""
_TEND_S = 5.0
_CREATED_MS = 30_000
_LOOK_S = 0.1
_LARGE_MESSAGE_BYTES = 64 << 20
"""What the dead-letter topic accepts: more than any delay topic is likely to."""


async def run_bridge(
    bootstrap: str,
    settings: Mapping[str, str],
    options: LevelOptions | StoreOptions,
    metrics: BridgeMetrics,
    stop: asyncio.Event,
    *,
    http: Address | None = None,
    started: Callable[[Address | None], None] = lambda address: None,
    clock: Clock | None = None,
) -> None:
    """Run until `stop` is set; then finish what is being sent, leave the group and release the leases."""
    clock = clock or SystemClock()
    connection = ConnectionSettings(bootstrap, CLIENT_ID, settings)
    try:
        bridge: LevelBridge | StoreBridge
        if isinstance(options, LevelOptions):
            bridge = LevelBridge(connection, options, metrics, clock)
        else:
            bridge = StoreBridge(connection, options, metrics, clock)
        await bridge.open()
        try:
            server = await _serve(http, metrics, bridge.health, bridge.ready)
            try:
                started(None if server is None else server[1])
                await bridge.run(stop)
            finally:
                if server is not None:
                    await server[0].close()
        finally:
            await bridge.close()
    finally:
        connection.availability.close()


async def _serve(
    http: Address | None,
    metrics: BridgeMetrics,
    health: Callable[[], tuple[bool, Mapping[str, Any]]],
    ready: Callable[[], tuple[bool, Mapping[str, Any]]],
) -> tuple[HttpServer, Address] | None:
    if http is None:
        return None

    async def exposition() -> bytes:
        return metrics.exposition()

    server = HttpServer(*http, exposition, health, ready, setting="--http")
    return server, await server.start()


class LevelBridge:
    """Fixed levels."""

    def __init__(
        self, connection: ConnectionSettings, options: LevelOptions, metrics: BridgeMetrics, clock: Clock
    ) -> None:
        self._connection = connection
        self._options = options
        self._clock = clock
        self._topics = TopicAdmin(connection)
        observer = SendObserver(HookChain(), SendTally(), clock)
        committer = (
            KafkaTransactionCommitter(connection, options.group, observer, clock) if options.is_transactional else None
        )
        self._forwarder = LevelForwarder(
            _consumer(connection, options),
            committer,
            PlainForwarder(connection, clock),
            TargetTopics(connection, clock),
            options,
            metrics,
            clock,
        )

    async def open(self) -> None:
        """Check the delay topics, and make the dead-letter topic."""
        await asyncio.to_thread(self._open_topics)

    def _open_topics(self) -> None:
        for topic in self._options.topics:
            partitions = self._topics.partitions(topic)
            if partitions != len(self._options.levels_ms):
                raise ConfigError(
                    f"topic {topic} has {partitions} partitions, and there are {len(self._options.levels_ms)} levels:"
                    " a level is a partition; nothing was forwarded"
                )
        _create_dead_topic(self._topics, self._options, self._clock)

    async def run(self, stop: asyncio.Event) -> None:
        work = asyncio.create_task(asyncio.to_thread(self._forwarder.run), name="penstock-bridge-levels")
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._forwarder.stop()
        await work

    async def close(self) -> None:
        """Nothing is left."""

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        return True, {}

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        is_away = self._connection.availability.is_away
        return not is_away and not self._forwarder.problem.is_on, {"cluster": "away" if is_away else "ok"}


class StoreBridge:
    """Any delay, by databases."""

    def __init__(
        self, connection: ConnectionSettings, options: StoreOptions, metrics: BridgeMetrics, clock: Clock
    ) -> None:
        self._connection = connection
        self._options = options
        self._metrics = metrics
        self._clock = clock
        self._member = new_member_id()
        self._topics = TopicAdmin(connection)
        self._targets = TargetTopics(connection, clock)
        self._databases: list[DelayDatabase] = []
        self._senders: dict[tuple[int, int], tuple[ShardSender, asyncio.Task[None]]] = {}
        self._intake: Intake | None = None
        self._lease_problems: dict[int, OngoingProblem] = {}

    async def open(self) -> None:
        """Open the databases, check and make tables and topics. What is wrong is raised."""
        options = self._options
        for index, address in enumerate(options.databases):
            database = await Database.open(
                address,
                connections=_CONNECTIONS,
                timeout_ms=_DATABASE_TIMEOUT_MS,
                clock=self._clock,
                patience_ms=_DATABASE_PATIENCE_MS,
            )
            layout = Layout(
                databases=len(options.databases),
                index=index,
                tables=options.tables,
                plan=options.plan.kind.value,
                period_ms=options.plan.period_ms if options.plan.kind is PlanKind.TURNS else 0,
                by_topic=options.by_topic,
            )
            self._databases.append(DelayDatabase(database, options.group, layout, options.plan, self._clock))
            await self._databases[-1].open()
            self._lease_problems[index] = OngoingProblem(
                log, f"{address}: leases cannot be renewed; retrying", f"{address}: leases are renewed again"
            )
        await asyncio.to_thread(self._open_topics)

    def _open_topics(self) -> None:
        for topic in self._options.topics:
            self._topics.partitions(topic)
        _create_dead_topic(self._topics, self._options, self._clock)
        if not self._options.is_transactional:
            return
        wanted = len(self._options.databases) * self._options.tables
        name = self._options.progress_topic
        self._topics.create(name, wanted, config={"cleanup.policy": "compact"})
        partitions = _known_partitions(self._topics, name, self._clock)
        if partitions < wanted:
            raise ConfigError(
                f"topic {name} has {partitions} partitions, and there are {wanted} shards: each shard needs one;"
                " nothing was forwarded"
            )

    async def run(self, stop: asyncio.Event) -> None:
        options = self._options
        dead_letters = PlainForwarder(self._connection, self._clock)
        dead_letters.start(b"")
        self._intake = Intake(
            _consumer(self._connection, options),
            self._databases,
            dead_letters,
            self._targets,
            options,
            IntakeRules(
                dead_topic=options.dead_topic,
                target=options.target,
                max_delay_ms=options.longest_delay_ms,
                has_schedules=options.plan.kind is not PlanKind.TURNS,
            ),
            self._metrics,
            self._clock,
        )
        intake = asyncio.create_task(self._intake.run(), name="penstock-bridge-intake")
        keepers = [
            asyncio.create_task(self._keep_leases(), name="penstock-bridge-leases"),
            asyncio.create_task(self._keep_slots(), name="penstock-bridge-slots"),
        ]
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait([intake, *keepers, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._intake.stop()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)
        await self._stop_senders(list(self._senders))
        for database in self._databases:
            await self._release(database, list(database.shards), leave=True)
        await intake
        for keeper in keepers:
            if not keeper.cancelled():
                keeper.result()

    async def close(self) -> None:
        for database in self._databases:
            await database.database.close()

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        return True, {}

    def ready(self) -> tuple[bool, Mapping[str, Any]]:
        """Ready: the cluster and all databases answer, and what is due is forwarded."""
        is_away = self._connection.availability.is_away
        problems = [self._lease_problems[index] for index in self._lease_problems]
        problems += [sender.problem for sender, _ in self._senders.values()]
        if self._intake is not None:
            problems.append(self._intake.problem)
        details = {
            "cluster": "away" if is_away else "ok",
            "problems": sum(problem.is_on for problem in problems),
            "shards": len(self._senders),
        }
        return not is_away and not details["problems"], details

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.gather(*(self._renew(database) for database in self._databases))
            self._metrics.shards.set(len(self._senders))
            await self._count_pending()
            await asyncio.sleep(self._options.lease_ms / 3000)

    async def _renew(self, database: DelayDatabase) -> None:
        index = database.layout.index
        await self._reap(index)
        held = [shard for (of, shard) in self._senders if of == index]
        before_ms = self._clock.monotonic_ms()
        first = index * self._options.tables
        try:
            result: LeaseRound = await database.database.run(
                lambda connection: renew(connection, database.names, self._member, held, self._options.lease_ms, first)
            )
        except DatabaseError as error:
            self._lease_problems[index].report(error)
            return
        self._lease_problems[index].end()
        for shard, epoch in result.held.items():
            running = self._senders.get((index, shard))
            if running is not None and running[0].lease.epoch == epoch:
                running[0].lease.valid_until_ms = before_ms + self._options.lease_ms
                continue
            if running is not None:
                await self._stop_senders([(index, shard)])
            self._start_sender(database, Lease(shard, epoch, before_ms + self._options.lease_ms, self._clock))
        if result.surplus:
            await self._stop_senders([(index, shard) for shard in result.surplus])
            await self._release(database, result.surplus, leave=False)

    async def _keep_slots(self) -> None:
        """Tend the slots of the shards that this bridge sends; others tend theirs."""
        while True:
            await asyncio.sleep(_TEND_S)
            for index, shard in list(self._senders):
                try:
                    await self._databases[index].tend_slots(shard)
                except DatabaseError as error:
                    log.warning("could not maintain the slots of shard %s/%s; will retry: %s", index, shard, error)

    def _start_sender(self, database: DelayDatabase, lease: Lease) -> None:
        index = database.layout.index
        sender = ShardSender(
            database,
            lease,
            self._member,
            self._new_forwarder(database, lease.shard),
            self._targets,
            self._options,
            self._metrics,
            self._clock,
        )
        task = asyncio.create_task(sender.run(), name=f"penstock-bridge-sender-{index}-{lease.shard}")
        self._senders[index, lease.shard] = (sender, task)

    def _new_forwarder(self, database: DelayDatabase, shard: int) -> Forwarder:
        if not self._options.is_transactional:
            return PlainForwarder(self._connection, self._clock)
        index = database.layout.index
        tables = database.incarnation(shard).hex()[:_INCARNATION_DIGITS]
        return TransactionalForwarder(
            self._connection,
            f"{self._options.group}-{index}-{shard}-{tables}",
            self._options.progress_topic,
            index * self._options.tables + shard,
            self._clock,
        )

    async def _reap(self, index: int) -> None:
        """Forget senders that have lost their lease; what else ended one is raised."""
        for key, (_, task) in list(self._senders.items()):
            if key[0] == index and task.done():
                del self._senders[key]
                task.result()

    async def _stop_senders(self, keys: list[tuple[int, int]]) -> None:
        """Wait until they have finished what they are sending; a caller that is cancelled leaves them to the next."""
        stopped = {key: self._senders[key] for key in keys if key in self._senders}
        for sender, _ in stopped.values():
            sender.stop()
        if stopped:
            await asyncio.wait([task for _, task in stopped.values()])
        for key, (_, task) in stopped.items():
            self._senders.pop(key, None)
            task.result()

    async def _release(self, database: DelayDatabase, shards: list[int] | Any, *, leave: bool) -> None:
        try:
            await database.database.run(
                partial(release, names=database.names, member=self._member, shards=list(shards), leave=leave)
            )
        except DatabaseError as error:
            log.warning("could not release leases; other bridges wait until they expire: %s", error)

    async def _count_pending(self) -> None:
        try:
            counts = [await database.pending() for database in self._databases]
        except DatabaseError:
            return
        self._metrics.pending.set(sum(counts[index][shard] for index, shard in self._senders))


def _consumer(connection: ConnectionSettings, options: BridgeOptions) -> KafkaGroupConsumer:
    is_exactly_once = isinstance(options, LevelOptions) and options.is_transactional
    checked = validate_options(
        options.topics, group=options.group, delivery="exactly-once" if is_exactly_once else "at-least-once"
    )
    return KafkaGroupConsumer(connection, checked)


def _create_dead_topic(topics: TopicAdmin, options: BridgeOptions, clock: Clock) -> None:
    topics.create(options.dead_topic, config={"max.message.bytes": str(_LARGE_MESSAGE_BYTES)})
    _known_partitions(topics, options.dead_topic, clock)


def _known_partitions(topics: TopicAdmin, topic: str, clock: Clock) -> int:
    """The partitions of a topic that was created: brokers hear of it after it is."""
    deadline_ms = clock.monotonic_ms() + _CREATED_MS
    while topics.shape(topic) is None and clock.monotonic_ms() < deadline_ms:
        time.sleep(_LOOK_S)
    return topics.partitions(topic)
