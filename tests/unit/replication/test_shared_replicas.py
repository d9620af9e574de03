"""Partitions in storage that all brokers reach: leadership moves, the records stay, and only one can append."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf

import pytest

from penstock.clock import ManualClock
from penstock.cluster.decisions import elections
from penstock.cluster.decisions.topics import TopicCreation, TopicRules, create_topic
from penstock.cluster.metadata import BrokerInfo, MetadataImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import SHARED_STORAGE, STORAGE_SETTING, topic_config
from penstock.errors import ApiError, Code, CoordinationError, StorageError
from penstock.ids import BrokerId, TopicPartition, companion_of
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.replicas import Replicas
from penstock.replication.stray_logs import SharedStrayRemoval
from penstock.storage.memory import MemoryEngine
from support.logs import NOW_MS, batch, read_all
from support.shared import SharedEngine, SharedStore

A, B = BrokerId(1), BrokerId(2)
PATIENCE_S = 30.0


class Member:
    """One broker's partitions, and the image that it has."""

    def __init__(self, id: BrokerId, store: SharedStore, image: MetadataImage) -> None:
        self.id = id
        self.engine = SharedEngine(store)
        self.lease_until_ms = inf
        self.clock = ManualClock(NOW_MS)
        self.told: list[tuple[TopicPartition, bool]] = []
        """Which partitions began to lead, or stopped, in order."""
        self.replicas = Replicas(
            id,
            {SHARED_STORAGE: self.engine, "memory": new_memory_engine()},
            lambda topic, image: topic_config(topic.overrides),
            LeaderLease(self.clock, lambda: self.lease_until_ms, 1000),
            LagRules(max_ms=1000, max_messages=0),
        )
        self.replicas.on_role(
            lambda partition: self.told.append((partition.topic_partition, partition.leadership is not None))
        )
        self.image = image

    async def start(self) -> None:
        await self.replicas.open(self.image)
        await self.replicas.begin()

    async def take(self, image: MetadataImage) -> None:
        self.hear(image)
        await self.replicas.applied()

    def hear(self, image: MetadataImage) -> None:
        old, self.image = self.image, image
        self.replicas.change(old, image)

    def partition(self, topic: str = "orders", index: int = 0) -> Partition:
        return self.replicas.find(topic, index)

    async def append(self, *values: bytes, topic: str = "orders", index: int = 0) -> int:
        """Appends with acks=all; gives the offset of the last record, once it is acknowledged."""
        partition = self.partition(topic, index)
        appended = await partition.append(memoryview(batch(*values)), ALL_IN_SYNC)
        await partition.acknowledged(appended.last_offset, partition.term)
        return appended.last_offset

    async def leads(self, topic: str = "orders", index: int = 0) -> Partition:
        """Waits until it does, which may take several tries."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return self.partition(topic, index)
                except ApiError:
                    await asyncio.sleep(0.01)

    def refusal(self, topic: str = "orders", index: int = 0) -> Code:
        with pytest.raises(ApiError) as caught:
            self.partition(topic, index)
        return caught.value.code


def new_memory_engine() -> MemoryEngine:
    return MemoryEngine(LogSettings(), Limits(), ManualClock(NOW_MS))


class Two:
    """Two brokers, and the metadata as it is in the tree; a broker hears of a change when a test says so."""

    def __init__(self) -> None:
        self.store = SharedStore()
        brokers = {id: BrokerInfo(id, "127.0.0.1", 9092, has_shared_storage=True) for id in (A, B)}
        self.image = MetadataImage(1, "cluster", brokers, A, {}, {})
        self.a, self.b = Member(A, self.store, self.image), Member(B, self.store, self.image)

    def decide(self, decision: Callable[[MetadataDraft], object]) -> MetadataImage:
        draft = MetadataDraft(self.image)
        decision(draft)
        self.image = draft.finish()
        return self.image

    async def both(self, decision: Callable[[MetadataDraft], object]) -> None:
        self.decide(decision)
        await asyncio.gather(self.a.take(self.image), self.b.take(self.image))

    async def create(self, name: str = "orders", partitions: int = 1, **overrides: str) -> None:
        """The first partition is on broker A, the next on B, and so on."""
        settings = {STORAGE_SETTING: SHARED_STORAGE} | {key.replace("_", "."): each for key, each in overrides.items()}
        request = TopicCreation(name, partitions, 3, overrides=settings)
        await self.both(lambda draft: draft.put_topic(create_topic(draft, request, uuid.uuid4(), TopicRules(), {})))


def bury(broker: BrokerId) -> Callable[[MetadataDraft], None]:
    return lambda draft: elections.bury(draft, broker, lambda topic: False)


def come(broker: BrokerId) -> Callable[[MetadataDraft], None]:
    def decide(draft: MetadataDraft) -> None:
        draft.put_broker(replace(draft.brokers[broker], is_alive=True))
        elections.welcome(draft, broker, has_all=True, is_unclean=lambda topic: False)

    return decide


def give(broker: BrokerId, topic: str = "orders", index: int = 0) -> Callable[[MetadataDraft], None]:
    return lambda draft: draft.put_partition(topic, draft.topics[topic].partitions[index].handed_to(broker))


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    await made.a.start()
    await made.b.start()
    yield made
    made.store.gate.set()
    made.store.is_away = False
    await made.a.replicas.close()
    await made.b.replicas.close()


class TestMoves:
    async def test_the_records_stay_when_another_broker_leads(self, two: Two) -> None:
        await two.create(min_insync_replicas="3")
        assert await two.a.append(b"one", b"two") == 1
        await two.both(bury(A))
        assert two.a.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        assert not two.a.engine.logs
        partition = two.b.partition()
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)
        assert partition.knows_watermark
        assert await two.b.append(b"three") == 2
        assert [record.value for record in await read_all(partition.log)] == [b"one", b"two", b"three"]
        assert partition.log.epochs.starts == ((0, 0), (1, 2))

    async def test_an_idempotent_producer_goes_on_with_the_next_leader(self, two: Two) -> None:
        await two.create()
        sent = batch(b"one", producer=7)
        await two.a.partition().append(memoryview(bytearray(sent)), ALL_IN_SYNC)
        await two.both(give(B))
        again = await two.b.partition().append(memoryview(bytearray(sent)), ALL_IN_SYNC)
        assert (again.base_offset, again.is_repeat) == (0, True)

    async def test_a_leader_that_has_not_heard_of_its_successor_can_append_nothing(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        await two.b.take(two.decide(bury(A)))
        await two.b.append(b"two")
        with pytest.raises(ApiError) as caught:
            await two.a.append(b"late")
        assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ApiError):
            await two.a.partition().trim(1)
        assert [record.value for record in await read_all(two.b.partition().log)] == [b"one", b"two"]
        assert two.store.row("orders").start_offset == 0

    async def test_there_and_back_again_while_somebody_was_not_looking(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        first = two.a.partition()
        await two.b.take(two.decide(give(B)))
        await two.b.append(b"two")
        await two.both(give(A))
        assert two.a.partition() is not first
        assert first.is_gone
        assert two.a.partition().high_watermark == 2
        assert await two.a.append(b"three") == 2

    async def test_a_leader_that_goes_on_in_a_new_epoch_takes_over_again(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        await two.both(come(A))
        assert two.store.row("orders").leader_epoch == two.a.partition().leader_epoch == 1
        assert await two.a.append(b"two") == 1
        assert [leads for _, leads in two.a.told] == [True, False, True]

    async def test_nothing_is_taken_over_when_the_epoch_stays(self, two: Two) -> None:
        await two.create(partitions=2)
        partition = two.a.partition()
        two.store.is_away = True
        await two.both(bury(B))
        assert two.a.partition() is partition
        assert partition.leadership is not None
        await two.both(
            lambda draft: draft.put_topic(
                replace(draft.topics["orders"], overrides={**draft.topics["orders"].overrides, "retention.ms": "5"})
            )
        )
        assert partition.log.config.retention_ms == 5
        assert two.a.refusal(index=1) is Code.NOT_LEADER_OR_FOLLOWER

    async def test_what_a_broker_led_before_its_start_it_takes_over_when_it_is_a_member(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        again = Member(A, two.store, two.image)
        await again.replicas.open(again.image)
        assert not again.engine.logs
        assert again.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        await again.replicas.begin()
        assert again.partition().high_watermark == 1
        await again.replicas.close()

    async def test_without_a_way_to_the_storage_a_broker_holds_nothing(self, two: Two) -> None:
        await two.create()
        without = Replicas(
            A,
            {"memory": new_memory_engine()},
            lambda topic, image: topic_config(topic.overrides),
            LeaderLease(ManualClock(), lambda: inf, 1000),
            LagRules(max_ms=1000, max_messages=0),
        )
        await without.open(two.image)
        await without.begin()
        assert not without.shared_engines
        with pytest.raises(ApiError) as caught:
            without.find("orders", 0)
        assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
        await without.close()

    async def test_nobody_follows(self, two: Two) -> None:
        await two.create()
        old, two.a.image = two.a.image, two.decide(give(B))
        two.a.replicas.change(old, two.a.image)
        assert two.a.partition().leadership is None
        assert not two.a.replicas.followed()
        await two.a.replicas.applied()


class TestLease:
    async def test_past_its_lease_a_leader_neither_appends_nor_answers(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        two.a.lease_until_ms = two.a.clock.monotonic_ms()
        with pytest.raises(ApiError) as caught:
            await two.a.append(b"two")
        assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ApiError):
            await two.a.partition().confirm_leads()
        two.a.lease_until_ms = inf
        await two.a.partition().confirm_leads()


class TestStorageThatIsAway:
    async def test_a_take_over_that_fails_is_tried_again(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        two.store.failed_take_overs = 2
        await two.both(give(B))
        assert two.b.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        assert not two.b.engine.logs
        assert (await two.b.leads()).high_watermark == 1
        assert two.store.failed_take_overs == 0
        assert await two.b.append(b"two") == 1

    async def test_a_new_topic_is_led_when_the_storage_is_back(self, two: Two) -> None:
        two.store.is_away = True
        await two.create()
        assert two.a.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        two.store.is_away = False
        await two.a.leads()
        assert await two.a.append(b"one") == 0

    async def test_it_does_not_lead_if_another_does_by_the_time_it_succeeds(self, two: Two) -> None:
        await two.create()
        two.store.gate.clear()
        two.b.hear(two.decide(give(B)))
        await asyncio.sleep(0.01)
        two.b.hear(two.decide(give(A)))
        two.store.gate.set()
        await two.b.replicas.applied()
        assert two.b.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        assert not two.b.engine.logs
        assert not two.b.told

    async def test_a_later_epoch_in_the_storage_is_left_alone(self, two: Two) -> None:
        await two.create()
        await two.b.take(two.decide(give(B)))
        behind = two.image
        await two.a.take(two.decide(give(A)))
        late = Member(B, two.store, behind)
        await late.start()
        assert late.refusal() is Code.NOT_LEADER_OR_FOLLOWER
        assert two.store.row("orders").leader_epoch == 2
        await late.take(two.image)
        await late.replicas.close()
        assert await two.a.append(b"one") == 0

    async def test_the_other_partitions_of_the_topic_are_led(self, two: Two) -> None:
        await two.create(partitions=4)
        two.store.failures = 1
        await two.both(bury(A))
        held = [index for index in range(4) if two.b.replicas.here(TopicPartition("orders", index)) is not None]
        assert len(held) == 3
        for index in range(4):
            await two.b.leads(index=index)

    async def test_a_storage_that_does_not_answer_is_not_asked_for_every_partition(self, two: Two) -> None:
        await two.create(partitions=200)
        two.store.failures = 1000
        await two.both(bury(A))
        asked = 1000 - two.store.failures
        assert 16 <= asked < 50
        two.store.failures = 0
        for index in range(200):
            await two.b.leads(index=index)


class TestDeletion:
    async def test_the_topic_takes_its_records_with_it(self, two: Two) -> None:
        await two.create(partitions=2)
        await two.a.append(b"one")
        await two.both(lambda draft: draft.remove_topic("orders"))
        assert not two.store.rows
        assert not two.a.engine.logs and not two.b.engine.logs

    async def test_a_topic_that_is_made_anew_begins_empty(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        two.decide(lambda draft: draft.remove_topic("orders"))
        await two.create()
        assert len(two.store.rows) == 1
        assert await two.a.append(b"other") == 0

    async def test_a_partition_that_is_gone_takes_its_records_with_it(self, two: Two) -> None:
        await two.create(partitions=2)
        await two.both(
            lambda draft: draft.put_topic(
                replace(draft.topics["orders"], partitions=draft.topics["orders"].partitions[:1])
            )
        )
        assert [at for _, at in two.store.rows] == [TopicPartition("orders", 0)]

    async def test_what_a_dead_broker_left_behind_goes_at_the_second_look(self, two: Two) -> None:
        await two.create()
        await two.create("kept")
        await two.a.append(b"one")
        await two.b.take(two.decide(lambda draft: draft.remove_topic("orders")))
        removal = removal_on(two.b, two)
        await removal.look()
        assert len(two.store.rows) == 2
        await removal.look()
        assert [at for _, at in two.store.rows] == [TopicPartition("kept", 0)]

    async def test_a_look_counts_only_for_a_controller_that_reads_the_metadata(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        two.decide(lambda draft: draft.remove_topic("orders"))
        is_controller, is_away = True, False

        async def refresh() -> MetadataImage:
            if is_away:
                raise CoordinationError("away")
            return two.image

        removal = SharedStrayRemoval(two.b.engine, refresh, lambda: is_controller, 0)
        await removal.look()
        is_controller = False
        await removal.look()
        is_controller, is_away = True, True
        await removal.look()
        is_away = False
        two.store.is_away = True
        await removal.look()
        two.store.is_away = False
        await removal.look()
        assert two.store.rows
        await removal.look()
        assert not two.store.rows

    async def test_a_topic_that_is_newer_than_the_image_stays(self, two: Two) -> None:
        before = two.image
        await two.create()
        images = [before, two.image, two.image]

        async def refresh() -> MetadataImage:
            return images.pop(0)

        removal = SharedStrayRemoval(two.b.engine, refresh, lambda: True, 0)
        for _ in range(3):
            await removal.look()
        assert two.store.rows


def removal_on(member: Member, two: Two) -> SharedStrayRemoval:
    async def refresh() -> MetadataImage:
        return two.image

    return SharedStrayRemoval(member.engine, refresh, lambda: True, 0)


async def test_what_is_on_one_broker_alone_cannot_be_released() -> None:
    engine = new_memory_engine()
    at = TopicPartition("orders", 0)
    log = await engine.create(at, uuid.uuid4(), topic_config({}))
    await log.take_over(5)
    with pytest.raises(NotImplementedError):
        await engine.release(at)
    assert list(engine.logs) == [at]


class TestCompanions:
    async def test_the_companion_is_taken_over_with_its_log(self, two: Two) -> None:
        await two.create()
        await two.a.append(b"one")
        made = await two.a.partition().pair.ensure()
        assert made.start_offset == 1
        beside = companion_of(TopicPartition("orders", 0))
        assert two.store.row(*beside).leader_epoch == 0
        await two.both(give(B))
        companion = two.b.partition().pair.companion
        assert companion is not None
        assert companion.start_offset == 1
        assert two.store.row(*beside).leader_epoch == 1
        assert not two.a.engine.logs
        await two.both(lambda draft: draft.remove_topic("orders"))
        assert not two.store.rows

    async def test_one_that_cannot_be_taken_over_is_not_there(self, two: Two) -> None:
        await two.create()
        pair = two.a.partition().pair
        two.store.failed_take_overs = 1
        with pytest.raises(StorageError):
            await pair.ensure()
        assert pair.companion is None
        assert list(two.a.engine.logs) == [TopicPartition("orders", 0)]
        assert await pair.ensure() is pair.companion
