"""Brokers that share their storage: leadership goes from one to another through a real ZooKeeper, the records stay."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.clock import ManualClock, SystemClock
from penstock.cluster.decisions.settings import Increment, OperationKind, SettingOperation
from penstock.cluster.decisions.topics import TopicCreation
from penstock.config.cluster import ClusterSettings
from penstock.config.draining import DRAINING
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, topic_config
from penstock.errors import ApiError
from penstock.ids import BrokerId, TopicPartition
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import ALL_IN_SYNC
from penstock.replication.replicas import Replicas
from support.logs import batch, read_all
from support.shared import SharedEngine, SharedStore

from .conftest import Join, eventually
from .members import Member

PARTITIONS = 6
CALM = ClusterSettings(heal_after_ms=60_000, balance_after_ms=60_000)


class Broker:
    """A member, and the partitions that it leads."""

    def __init__(self, member: Member, store: SharedStore) -> None:
        self.member = member
        clock = SystemClock()
        self.replicas = Replicas(
            member.id,
            {SHARED_STORAGE: SharedEngine(store, clock)},
            lambda topic, image: topic_config(topic.overrides),
            LeaderLease(clock, member.membership.lease_until_ms, 1000),
            LagRules(max_ms=1000, max_messages=0),
        )

    async def start(self) -> Broker:
        await self.replicas.open(self.member.image)
        self.member.metadata.subscribe(self.replicas.change)
        await self.replicas.begin()
        return self

    async def append(self, index: int, value: bytes) -> None:
        partition = self.replicas.find("orders", index)
        appended = await partition.append(memoryview(batch(value)), ALL_IN_SYNC)
        await partition.acknowledged(appended.last_offset, partition.term)

    def led(self) -> set[int]:
        """The partitions that it leads in fact, not by the metadata alone."""
        return {partition.topic_partition.partition for partition in self.replicas if partition.leadership is not None}


class Cluster:
    def __init__(self, join: Join) -> None:
        self.store = SharedStore()
        self._join = join
        self.brokers: dict[int, Broker] = {}

    async def start(self, number: int) -> Broker:
        member = await self._join(number, settings=CALM, clock=ManualClock(), has_shared_storage=True)
        self.brokers[number] = await Broker(member, self.store).start()
        return self.brokers[number]

    async def end(self, number: int, how: Callable[[Member], Awaitable[None]]) -> None:
        broker = self.brokers.pop(number)
        await how(broker.member)
        await broker.replicas.close()

    async def leads(self, *shares: int) -> None:
        """Waits until each partition is led by one broker, and the brokers have these shares."""

        def look() -> bool:
            led = {number: broker.led() for number, broker in self.brokers.items()}
            all_led = Counter(index for each in led.values() for index in each)
            return all_led == Counter(range(PARTITIONS)) and tuple(sorted(map(len, led.values()))) == shares

        await eventually(look, f"the brokers lead {shares}")

    async def append(self, value: bytes) -> None:
        """To each partition, wherever it is led by the time that it succeeds."""
        for index in range(PARTITIONS):

            async def appended(index: int = index) -> bool:
                for broker in self.brokers.values():
                    try:
                        await broker.append(index, value)
                    except ApiError:
                        continue
                    return True
                return False

            await eventually(appended, f"partition {index} takes {value!r}")

    async def values(self, index: int) -> list[bytes | None]:
        (leader,) = (broker for broker in self.brokers.values() if index in broker.led())
        return [record.value for record in await read_all(leader.replicas.find("orders", index).log)]


@pytest.fixture
async def cluster(join: Join) -> AsyncIterator[Cluster]:
    made = Cluster(join)
    for number in (1, 2, 3):
        await made.start(number)
    results = await made.brokers[1].member.metadata.create_topics(
        [TopicCreation("orders", PARTITIONS, 3, overrides={STORAGE_SETTING: SHARED_STORAGE})]
    )
    assert not isinstance(results["orders"], Exception)
    await made.leads(2, 2, 2)
    yield made
    for broker in made.brokers.values():
        await broker.replicas.close()


async def test_all_records_are_there_after_a_death_a_return_and_an_orderly_stop(cluster: Cluster) -> None:
    await cluster.append(b"three brokers")
    await cluster.end(2, Member.die)
    await cluster.leads(3, 3)
    await cluster.append(b"two")
    await cluster.start(2)
    await cluster.leads(2, 2, 2)
    await cluster.append(b"three again")
    await cluster.end(1, Member.leave)
    await cluster.leads(3, 3)
    await cluster.append(b"two again")
    for index in range(PARTITIONS):
        assert await cluster.values(index) == [b"three brokers", b"two", b"three again", b"two again"]


async def test_the_last_broker_leads_everything_and_so_does_the_first_that_comes(cluster: Cluster) -> None:
    await cluster.append(b"three")
    await cluster.end(3, Member.leave)
    await cluster.end(1, Member.die)
    await cluster.leads(PARTITIONS)
    await cluster.append(b"one")
    await cluster.end(2, Member.die)
    await cluster.start(3)
    await cluster.leads(PARTITIONS)
    for index in range(PARTITIONS):
        assert await cluster.values(index) == [b"three", b"one"]


async def test_a_broker_that_lost_its_session_leads_again_in_new_epochs_or_leaves_it_to_others(
    cluster: Cluster,
) -> None:
    await cluster.append(b"before")
    member = cluster.brokers[2].member
    member.lose_session()
    await eventually(lambda: member.membership.epoch == 2, "it is a member again")
    await cluster.leads(2, 2, 2)
    await cluster.append(b"after")
    for index in range(PARTITIONS):
        assert await cluster.values(index) == [b"before", b"after"]


async def test_a_drained_broker_hands_over_and_a_reassignment_by_hand_is_there_at_once(cluster: Cluster) -> None:
    await cluster.append(b"one")
    metadata = cluster.brokers[1].member.metadata
    drain = Increment((SettingOperation(DRAINING.name, OperationKind.SET, "true"),))
    assert await metadata.alter_broker_settings({BrokerId(1): drain}) == {BrokerId(1): None}
    await cluster.leads(0, 3, 3)
    index = min(cluster.brokers[2].led())
    at = TopicPartition("orders", index)
    assert await metadata.reassign_partitions({at: (BrokerId(3),)}) == {at: None}
    assert metadata.image.topics["orders"].partitions[index].leader == 3
    await cluster.leads(0, 3, 3)
    await asyncio.gather(*(broker.replicas.applied() for broker in cluster.brokers.values()))
    await cluster.append(b"two")
    for index in range(PARTITIONS):
        assert await cluster.values(index) == [b"one", b"two"]
