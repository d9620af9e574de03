"""Groups whose offsets are in shared storage: whoever leads a partition of the internal topic coordinates them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions.settings import effective_config
from penstock.cluster.decisions.topics import TopicCreation
from penstock.cluster.metadata import OFFSETS_TOPIC, BrokerInfo
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import GroupSettings
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING
from penstock.errors import ApiError, Code
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.events import MemberEpoch
from penstock.groups.offsets import Committed
from penstock.ids import BrokerId, TopicPartition
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.replicas import Replicas
from support.shared import SharedEngine, SharedStore
from support.tree import register

A, B = BrokerId(1), BrokerId(2)
AT = TopicPartition("orders", 0)
NO_MEMBER = MemberEpoch("", None, -1)
DEFAULTS = {STORAGE_SETTING: SHARED_STORAGE}
PATIENCE_S = 30.0


class Member:
    """One broker's groups."""

    def __init__(self, id: BrokerId, store: SharedStore, metadata: MetadataChanges) -> None:
        clock = SystemClock()
        self.id = id
        self.metadata = metadata
        self.replicas = Replicas(
            id,
            {SHARED_STORAGE: SharedEngine(store, clock)},
            lambda topic, image: effective_config(topic, DEFAULTS),
            LeaderLease(clock, lambda: inf, 1000),
            LagRules(max_ms=1000, max_messages=0),
        )
        self.groups = GroupCoordinator(
            metadata,
            self.replicas,
            GroupSettings(offsets_partitions=2),
            clock,
            lambda client: client,
            DamageRepair(lambda: self.replicas),
        )

    async def start(self) -> None:
        await self.replicas.open(self.metadata.image)
        self.metadata.subscribe(self.replicas.change)
        await self.replicas.begin()
        await self.groups.start()

    async def close(self) -> None:
        await self.groups.close()
        await self.replicas.close()

    async def commit(self, group: str, offset: int) -> Code:
        refusal, codes = await self.groups.commit(group, NO_MEMBER, {AT: Committed(offset, -1, "", 0)})
        assert refusal is None
        return codes[AT]

    async def committed(self, group: str) -> int | None:
        """Asks until this broker coordinates the group."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    held, _ = await self.groups.fetch(group, [AT])
                except ApiError:
                    await asyncio.sleep(0.01)
                    continue
                found = held[AT]
                return None if found is None else found.offset

    async def refusal(self, group: str) -> Code:
        with pytest.raises(ApiError) as caught:
            await self.groups.fetch(group, [AT])
        return caught.value.code


class Two:
    def __init__(self, metadata: MetadataChanges) -> None:
        self.store = SharedStore()
        self.metadata = metadata
        self.a, self.b = Member(A, self.store, metadata), Member(B, self.store, metadata)

    async def give(self, group: str, broker: BrokerId) -> None:
        """By hand, as kafka-reassign-partitions does."""
        at = await self.a.groups.place_of(group)
        results = await self.metadata.reassign_partitions({at: (broker,)})
        assert results == {at: None}
        await asyncio.gather(self.a.replicas.applied(), self.b.replicas.applied())


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    tree = await EmbeddedCoordination.open(tmp_path / "coordination.db")
    metadata = MetadataChanges(tree, MetadataSettings(None, A, topic_defaults=DEFAULTS))
    await metadata.start()
    for id in (B, A):
        await register(metadata, BrokerInfo(id, "127.0.0.1", 9092, has_shared_storage=True))
    await metadata.create_topics([TopicCreation(AT.topic, 1)])
    made = Two(metadata)
    await made.a.start()
    await made.b.start()
    yield made
    await made.a.close()
    await made.b.close()
    await metadata.close()
    await tree.close()


async def test_a_group_goes_with_the_partition_that_it_is_in(two: Two) -> None:
    assert await two.a.groups.prepare() == 2
    topic = two.metadata.image.topics[OFFSETS_TOPIC]
    assert topic.is_shared
    assert sorted(partition.leader for partition in topic.partitions) == [A, B]
    await two.give("g", A)
    assert await two.a.committed("g") is None
    assert await two.a.commit("g", 7) is Code.NONE
    await two.give("g", B)
    assert await two.a.refusal("g") is Code.NOT_COORDINATOR
    assert await two.b.committed("g") == 7
    assert await two.b.commit("g", 8) is Code.NONE
    await two.give("g", A)
    assert await two.a.committed("g") == 8
    assert await two.b.refusal("g") is Code.NOT_COORDINATOR


async def test_a_coordinator_without_its_storage_takes_no_offsets_and_forgets_none(two: Two) -> None:
    await two.a.groups.prepare()
    await two.give("g", A)
    assert await two.a.committed("g") is None
    assert await two.a.commit("g", 7) is Code.NONE
    two.store.failed_take_overs = 1
    await two.give("g", B)
    assert await two.b.refusal("g") is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await two.b.committed("g") == 7
