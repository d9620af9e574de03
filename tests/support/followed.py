"""A leader with a follower, in one process, without a network between them."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.handlers.fetch.handler import FetchHandler
from penstock.broker.handlers.fetch.partition_reads import NO_REPLICA
from penstock.broker.known_brokers import KnownBrokers
from penstock.clock import ManualClock
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.config.broker import Limits, LogSettings
from penstock.config.listeners import INTER_BROKER
from penstock.delay.delays import Delays
from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.net.caller import Caller
from penstock.parts import read_parts
from penstock.protocol.fetch import FetchPartition, FetchRequest
from penstock.protocol.replica_fetch import VERSION, ReplicaResult, decode_response
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.storage.memory import MemoryEngine
from penstock.views.catalogue import Catalogue
from support import callers
from support.logs import AT, NOW_MS, TOPIC_ID, batch, settings

ME, OTHER = BrokerId(1), BrokerId(2)
LONG_MS = 60_000
"""A wait that a test never sits out."""
LAG_MS = 1_000
FOLLOWED_WITHIN_MS = 500
PARTITIONS = 3


class Leader:
    """A broker that leads three partitions, and one follower's side of the talk with it."""

    def __init__(self, limits: Limits | None = None, engine: MemoryEngine | None = None) -> None:
        self.clock = ManualClock(NOW_MS)
        self.lease_until_ms = float("inf")
        lease = LeaderLease(self.clock, lambda: self.lease_until_ms, FOLLOWED_WITHIN_MS)
        engine = engine or MemoryEngine(LogSettings(), Limits(), self.clock)
        rules = LagRules(max_ms=LAG_MS, max_messages=0)
        self.replicas = Replicas(ME, {"segmented": engine}, lambda topic, image: settings(), lease, rules)
        partitions = tuple(PartitionImage(index, ME, 0, (ME, OTHER), (ME, OTHER)) for index in range(PARTITIONS))
        self.topic = TopicImage(AT.topic, TOPIC_ID, partitions)
        brokers = {id: BrokerInfo(id, "127.0.0.1", 9092, inter_broker_listener=INTER_BROKER) for id in (ME, OTHER)}
        self.image = MetadataImage(1, "cluster", brokers, ME, {AT.topic: self.topic}, {TOPIC_ID: AT.topic})
        limits = limits or Limits(idle_connection_ms=LONG_MS)
        self.handler = FetchHandler(
            self.replicas,
            Catalogue(self.image),
            Delays(self.clock),
            limits,
            self.clock,
            lambda partition, rack, listener: NO_REPLICA,
            lambda: None,
            KnownBrokers(ME, lambda: self.image),
        )
        self.number = 0

    async def open(self) -> None:
        await self.replicas.open(self.image)
        await self.replicas.begin()

    async def close(self) -> None:
        await self.replicas.close()

    def __getitem__(self, index: int) -> Partition:
        return self.replicas.find(AT.topic, index)

    async def append(self, index: int) -> None:
        await self[index].append(memoryview(batch(b"value")), ALL_IN_SYNC)

    async def change(self, index: int, epoch: int) -> None:
        """The metadata begins another epoch of a partition."""
        partitions = tuple(
            replace(each, leader_epoch=epoch) if each.index == index else each for each in self.topic.partitions
        )
        topic = replace(self.topic, partitions=partitions)
        self.replicas.change(self.image, replace(self.image, version=2, topics={AT.topic: topic}))
        await self.replicas.applied()

    async def fetch(
        self,
        *named: tuple[int, int],
        forgotten: tuple[int, ...] = (),
        epoch: int = 0,
        number: int | None = None,
        wait_ms: int = 0,
        follower: int = OTHER,
        caller: Caller | None = None,
    ) -> dict[int, ReplicaResult]:
        """The results of a fetch that names partitions with their offsets; an error of the whole as AssertionError."""
        number = self.number if number is None else number
        request = FetchRequest(
            follower,
            wait_ms,
            1,
            1 << 20,
            0,
            number,
            1 if number else 0,
            [
                FetchPartition(None, TOPIC_ID.bytes, index, epoch, offset, 0 if offset else -1, 0, 1 << 20)
                for index, offset in named
            ],
            [(None, TOPIC_ID.bytes, index) for index in forgotten],
            "",
        )
        answer = await self.handler.fetch(VERSION, 7, request, caller or callers.broker())
        frame = read_parts(answer.parts)
        code, self.number, results = decode_response(memoryview(frame)[9:])
        if code:
            raise AssertionError(Code(code).name)
        return {result.index: result for result in results}
