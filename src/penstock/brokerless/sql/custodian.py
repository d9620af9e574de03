"""The background work of brokers, done by one client while there is no broker: it delivers delayed messages, drops old
records, and forgets producers and groups that are gone.

Rules:

- The client that made the leased node `/leases/custodian` is the custodian. While a broker with shared storage is
  alive, it does nothing.
- The custodian leads: it commits new leader epochs, and takes logs over in these, as a broker would. So at most one
  process delivers, whatever hangs: the row of a log lets only the highest epoch write.
- The metadata shows no leader. A broker that comes is given the partitions in epochs that are higher still, and the
  custodian, which sees that, or finds itself fenced, lets go.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from penstock.brokerless.sql import group_tables
from penstock.brokerless.sql.link import Link
from penstock.clock import Clock
from penstock.cluster import nodes
from penstock.cluster.coordination.contract import Create, Delete, Unsubscribe
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import SHARED_STORAGE, TopicConfig
from penstock.delay.delays import Delays
from penstock.delay.inbox_intake import InboxIntake
from penstock.errors import ConflictError, PenstockError
from penstock.ids import BrokerId, TopicPartition
from penstock.logs import fields
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.sql.errors import DatabaseError
from penstock.storage.sql.engine import SqlEngine
from penstock.yielding import yielding

logger = logging.getLogger(__name__)

CUSTODIAN = BrokerId((1 << 31) - 1)
"""The broker that a custodian is for the code that it shares with brokers. No broker has this id."""
CUSTODIAN_LEASE = f"{nodes.LEASES}/custodian"
_LOOK_S = 0.5
_COURTESY_LOOKS = 4
"""For so many looks, a client that cannot use all database groups leaves the work to clients that can."""
_BUFFER_BYTES = 16 << 20
_CACHE_BYTES = 4 << 20
_LAG_MS = 10_000
_FORGET_EVERY_MS = 60_000


class Custodian:
    """Runs as long as the client is open, and takes over when it may."""

    def __init__(self, link: Link, clock: Clock, settings: LogSettings) -> None:
        self._link = link
        self._clock = clock
        self._settings = settings
        self._name = uuid.uuid4().hex
        self._term: _Term | None = None
        self._free_looks = 0
        """How often the lease was found free."""
        self._stop = asyncio.Event()
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: list[Unsubscribe] = []

    @property
    def replicas(self) -> Replicas | None:
        """The partitions that this client looks after; None while it does not."""
        return None if self._term is None else self._term.replicas

    @property
    def delays(self) -> Delays | None:
        return None if self._term is None else self._term.delays

    def start(self) -> None:
        coordination = self._link.coordination
        self._unsubscribe = [
            coordination.watch_children(nodes.LEASES, lambda names: self._due.set()),
            coordination.on_session_lost(self._due.set),
            self._link.metadata.subscribe(lambda old, new: self._due.set()),
        ]
        self._task = asyncio.get_running_loop().create_task(self._run(), name="custodian")

    async def close(self) -> None:
        self._stop.set()
        self._due.set()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._due.clear()
                try:
                    await self._look()
                except (PenstockError, OSError) as error:
                    logger.info("could not do the custodian's work, will retry", extra=fields(error=str(error)))
                except Exception:
                    logger.exception("the custodian's work failed")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._due.wait()
        finally:
            await self._end_term()
            with suppress(PenstockError):
                await self._give_lease_back()

    async def _look(self) -> None:
        # The image first: a broker that leads in it and has no lease afterwards is gone, and has not just started.
        image = self._link.image
        names = await self._link.coordination.children(nodes.LEASES)
        if self._has_broker(names) or not await self._has_lease():
            await self._end_term()
            return
        if self._term is None:
            self._term = await _Term.begin(self._link, self._clock, self._settings)
            logger.info("this client is the custodian now: no broker is alive")
        await self._term.look(image)

    def _has_broker(self, names: list[str]) -> bool:
        """Whether a broker is alive that leads, or is about to. One that is not in the image yet may be."""
        known = self._link.image.brokers
        return any(
            broker not in known or known[broker].has_shared_storage for broker in nodes.brokers_with_lease(names)
        )

    async def _has_lease(self) -> bool:
        coordination, value = self._link.coordination, nodes.encode_lease(self._name, self._name)
        found = await coordination.get(CUSTODIAN_LEASE)
        if found is not None:
            self._free_looks = 0
            return found.value == value
        self._free_looks += 1
        if not self._link.has_all_databases and self._free_looks < _COURTESY_LOOKS:
            return False
        try:
            await coordination.commit(Create(CUSTODIAN_LEASE, value, leased=True))
        except ConflictError:
            return False
        return True

    async def _give_lease_back(self) -> None:
        coordination = self._link.coordination
        found = await coordination.get(CUSTODIAN_LEASE)
        if found is not None and found.value == nodes.encode_lease(self._name, self._name):
            with suppress(ConflictError):
                await coordination.commit(Delete(CUSTODIAN_LEASE, found.version))

    async def _end_term(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            logger.info("this client is no longer the custodian")
            await term.close()


class _Term:
    """While this client is the custodian: partitions that it leads, and the work on them."""

    def __init__(self, link: Link, clock: Clock, settings: LogSettings) -> None:
        self._link = link
        self._clock = clock
        self._settings = settings
        self._epochs: dict[tuple[str, TopicPartition], int] = {}
        """The epochs in which this client leads, by topic id and partition."""
        self.delays = Delays(clock)
        lease = LeaderLease(clock, link.coordination.lease_until_ms, _LAG_MS)
        engine = SqlEngine(
            link.groups,
            settings,
            Limits(),
            clock,
            link.image.cluster_id,
            buffer_bytes=_BUFFER_BYTES,
            cache_bytes=_CACHE_BYTES,
        )
        self.replicas = Replicas(
            CUSTODIAN,
            {SHARED_STORAGE: engine},
            self._effective,
            lease,
            LagRules(max_ms=_LAG_MS, max_messages=0),
            self.delays,
        )
        self.replicas.on_role(self.delays.role_changed)
        self._image = self._led(link.image)
        self._intake = InboxIntake(link.groups, lambda: list(self.replicas))
        self._maintained_ms = clock.monotonic_ms()
        self._compacted_ms = clock.monotonic_ms()
        self._forgotten_ms = clock.monotonic_ms()
        self._maintaining: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, link: Link, clock: Clock, settings: LogSettings) -> _Term:
        term = cls(link, clock, settings)
        try:
            await term.replicas.open(term._image)
            await term.replicas.begin()
            term._intake.start()
        except BaseException:
            await term.close()
            raise
        return term

    def _effective(self, topic: TopicImage, image: MetadataImage) -> TopicConfig:
        return self._link.config(topic)

    async def look(self, seen: MetadataImage) -> None:
        """Leads the partitions that have no leader, and does what is due. The brokers that lead in `seen` are gone."""
        orphans = self._led_by_others(seen)
        if orphans:
            await self._take(orphans)
        image = self._led(self._link.image)
        if image != self._image:
            old, self._image = self._image, image
            self.replicas.change(old, image)
        self._maintain_if_due()

    async def close(self) -> None:
        await self._intake.close()
        if self._maintaining is not None:
            await asyncio.wait([self._maintaining])
        await self.replicas.close()
        await self.delays.close()

    def _led_by_others(self, image: MetadataImage) -> dict[tuple[str, TopicPartition], PartitionImage]:
        """What this client does not lead yet."""
        return {
            _key(topic, partition): partition
            for topic in image.topics.values()
            if _is_ours(topic)
            for partition in topic.partitions
            if self._link.has_database(partition.database)
            and (self._epochs.get(_key(topic, partition)) != partition.leader_epoch or partition.leader != NO_LEADER)
        }

    async def _take(self, wanted: dict[tuple[str, TopicPartition], PartitionImage]) -> None:
        """What has changed since it was seen is left alone: a broker may lead it by now."""
        epochs: dict[tuple[str, TopicPartition], int] = {}

        def decide(draft: MetadataDraft) -> None:
            epochs.clear()
            for (topic_id, at), seen in wanted.items():
                topic = draft.topics.get(at.topic)
                if topic is None or str(topic.id) != topic_id or at.partition >= len(topic.partitions):
                    continue
                partition = topic.partitions[at.partition]
                if (partition.leader, partition.leader_epoch) != (seen.leader, seen.leader_epoch):
                    continue
                epochs[topic_id, at] = partition.leader_epoch + 1
                draft.put_partition(
                    at.topic, replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)
                )

        await self._link.metadata.change(decide, partitions=len(wanted))
        self._epochs.update(epochs)

    def _led(self, image: MetadataImage) -> MetadataImage:
        """The image in which this client is the broker that leads. Topics that are not in it count as deleted."""
        topics: dict[str, TopicImage] = {}
        for name, topic in image.topics.items():
            topics[name] = topic if not _is_ours(topic) else self._led_topic(topic)
        brokers = {CUSTODIAN: BrokerInfo(CUSTODIAN, "", 0, has_shared_storage=True)}
        return replace(image, brokers=MappingProxyType(brokers), topics=MappingProxyType(topics))

    def _led_topic(self, topic: TopicImage) -> TopicImage:
        partitions = tuple(
            replace(each, leader=CUSTODIAN, replicas=(CUSTODIAN,), in_sync=(CUSTODIAN,))
            if each.leader == NO_LEADER and self._epochs.get(_key(topic, each)) == each.leader_epoch
            else each
            for each in topic.partitions
        )
        return replace(topic, partitions=partitions)

    def _maintain_if_due(self) -> None:
        if self._maintaining is not None and not self._maintaining.done():
            return
        now_ms = self._clock.monotonic_ms()
        retains = now_ms - self._maintained_ms >= self._settings.retention_check_ms
        compacts = now_ms - self._compacted_ms >= self._settings.compaction_check_ms
        forgets = now_ms - self._forgotten_ms >= _FORGET_EVERY_MS
        if retains:
            self._maintained_ms = now_ms
        if compacts:
            self._compacted_ms = now_ms
        if forgets:
            self._forgotten_ms = now_ms
        if retains or compacts or forgets:
            self._maintaining = asyncio.get_running_loop().create_task(
                self._maintain(retains=retains, compacts=compacts, forgets=forgets), name="maintain the queue"
            )

    async def _maintain(self, *, retains: bool, compacts: bool, forgets: bool) -> None:
        if forgets:
            try:
                default = self._link.groups.default
                await default.change(group_tables.forget_gone, default.generation)
            except DatabaseError as error:
                logger.info("could not delete the rows of expired members and claims", extra=fields(error=str(error)))
        if not (retains or compacts):
            return
        async for partition in yielding(list(self.replicas)):
            try:
                await _maintain(partition, retains=retains, compacts=compacts)
            except (PenstockError, OSError) as error:
                logger.warning(
                    "retention or compaction failed",
                    extra=fields(log=str(partition.topic_partition), error=str(error)),
                )


async def _maintain(partition: Partition, *, retains: bool, compacts: bool) -> None:
    log = partition.log
    if partition.is_gone or partition.leadership is None:
        return
    # What an archive needs, and what retired partitions still have to give, only brokers know.
    if retains and not log.config.archive_group and log.successor is None:
        await log.apply_retention()
    if compacts:
        await log.compact()


def _is_ours(topic: TopicImage) -> bool:
    return topic.is_shared and not topic.is_internal and topic.view_of is None


def _key(topic: TopicImage, partition: PartitionImage) -> tuple[str, TopicPartition]:
    return str(topic.id), TopicPartition(topic.name, partition.index)
