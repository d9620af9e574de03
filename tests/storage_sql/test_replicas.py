"""Two brokers whose partitions are in one database: leadership moves, and what was acknowledged stays."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from math import inf

import pytest

from penstock.clock import SystemClock
from penstock.cluster.decisions.topics import TopicCreation, TopicRules, create_topic
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, topic_config
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId
from penstock.records.records import Record, build_batch
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.sql.engine import SqlEngine
from support.logs import batch, read_all
from support.waiting import PATIENCE_S

from .conftest import CLUSTER

A, B = BrokerId(1), BrokerId(2)
CLOCK = SystemClock()


class Member:
    """One broker's partitions, and the image that it has."""

    def __init__(self, id: BrokerId, database: Database, image: MetadataImage) -> None:
        self._database = database
        self.delays = Delays(CLOCK)
        self.engine = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), CLOCK, CLUSTER)
        self.replicas = Replicas(
            id,
            {SHARED_STORAGE: self.engine},
            lambda topic, image: topic_config(topic.overrides),
            LeaderLease(CLOCK, lambda: inf, 1000),
            LagRules(max_ms=1000, max_messages=0),
            self.delays,
        )
        self.replicas.on_role(self.delays.role_changed)
        self.image = image

    async def start(self) -> None:
        await self.replicas.open(self.image)
        await self.replicas.begin()

    async def take(self, image: MetadataImage) -> None:
        old, self.image = self.image, image
        self.replicas.change(old, image)
        await self.replicas.applied()

    async def close(self) -> None:
        await self.delays.close()
        await self.replicas.close()
        await self._database.close()

    @property
    def partition(self) -> Partition:
        return self.replicas.find("orders", 0)

    async def append(self, made: bytearray) -> int:
        """Appends with acks=all; gives the base offset, once it is acknowledged."""
        partition = self.partition
        appended = await partition.append(memoryview(made), ALL_IN_SYNC)
        await partition.acknowledged(appended.last_offset, partition.term)
        return appended.base_offset

    async def values(self, count: int) -> list[bytes | None]:
        """The values in the log, as soon as there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [record.value for record in await read_all(self.partition.log)]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


class Two:
    """Two brokers, and the metadata as it is in the tree; a broker hears of a change when a test says so."""

    def __init__(self, databases: list[Database]) -> None:
        brokers = {id: BrokerInfo(id, "127.0.0.1", 9092, has_shared_storage=True) for id in (A, B)}
        self.image = MetadataImage(1, "cluster", brokers, A, {}, {})
        self.a, self.b = Member(A, databases[0], self.image), Member(B, databases[1], self.image)

    def decide(self, decision: Callable[[MetadataDraft], object]) -> MetadataImage:
        draft = MetadataDraft(self.image)
        decision(draft)
        self.image = draft.finish()
        return self.image

    async def both(self, decision: Callable[[MetadataDraft], object]) -> None:
        self.decide(decision)
        await asyncio.gather(self.a.take(self.image), self.b.take(self.image))

    async def create(self) -> None:
        """A topic with one partition, on broker A."""
        request = TopicCreation("orders", 1, 3, overrides={STORAGE_SETTING: SHARED_STORAGE})
        await self.both(lambda draft: draft.put_topic(create_topic(draft, request, uuid.uuid4(), TopicRules(), {})))


def give(broker: BrokerId) -> Callable[[MetadataDraft], None]:
    return lambda draft: draft.put_partition("orders", draft.topics["orders"].partitions[0].handed_to(broker))


def delayed(value: bytes, delay: bytes) -> bytearray:
    return build_batch([Record(None, value, (("penstock-delay", delay),), CLOCK.now_ms())])


def plain(value: bytes, *, producer: int = -1, sequence: int = 0) -> bytearray:
    return batch(value, at_ms=CLOCK.now_ms(), producer=producer, sequence=sequence)


@pytest.fixture
async def two(address: str) -> AsyncIterator[Two]:
    databases = [await Database.open(DatabaseAddress.parse(address), connections=3) for _ in (A, B)]
    made = Two(databases)
    await made.a.start()
    await made.b.start()
    yield made
    await made.a.close()
    await made.b.close()


async def test_the_records_stay_when_another_broker_leads(two: Two) -> None:
    await two.create()
    sent = plain(b"one", producer=7)
    assert await two.a.append(bytearray(sent)) == 0
    await two.both(give(B))
    assert not two.a.engine.logs
    assert two.b.partition.high_watermark == 1
    assert await two.b.append(bytearray(sent)) == 0, "a repeat is known"
    assert await two.b.append(plain(b"two", producer=7, sequence=1)) == 1
    await two.both(give(A))
    assert await two.a.append(plain(b"three", producer=7, sequence=2)) == 2
    assert await two.a.values(3) == [b"one", b"two", b"three"]


async def test_a_leader_that_has_not_heard_of_its_successor_changes_nothing(two: Two) -> None:
    await two.create()
    await two.a.append(plain(b"one"))
    await two.b.take(two.decide(give(B)))
    await two.b.append(plain(b"two"))
    for change in (two.a.append(plain(b"late")), two.a.partition.trim(1)):
        with pytest.raises(ApiError) as caught:
            await change
        assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
    assert await two.b.values(2) == [b"one", b"two"]
    assert two.b.partition.log.start_offset == 0


async def test_delayed_messages_move_with_their_partition_and_are_delivered_once(two: Two) -> None:
    await two.create()
    await two.a.append(plain(b"now"))
    await two.a.append(delayed(b"later", b"700"))
    await two.a.append(delayed(b"much later", b"1h"))
    await two.both(give(B))
    assert await two.b.values(2) == [b"now", b"later"]
    await two.both(give(A))
    await two.a.append(delayed(b"last", b"1"))
    assert await two.a.values(3) == [b"now", b"later", b"last"]


async def test_a_deleted_topic_leaves_no_table(two: Two, database: Database) -> None:
    await two.create()
    await two.a.append(delayed(b"later", b"1h"))
    tables = "SELECT table_name FROM queue ORDER BY table_name"
    assert await database.run(lambda connection: connection.execute(tables)) == [("orders_0",), ("orders_0_delayed",)]
    await two.both(lambda draft: draft.remove_topic("orders"))
    assert await database.run(lambda connection: connection.execute(tables)) == []
    await two.create()
    assert await two.a.append(plain(b"of the new one")) == 0
    assert await two.a.values(1) == [b"of the new one"]
