"""Partitions in step with the metadata: topics do not wait for each other, and long work lets others have a turn."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.errors import ApiError
from penstock.ids import BrokerId, TopicPartition
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import LagRules
from penstock.replication.partition import ALL_IN_SYNC
from penstock.replication.replicas import Replicas
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.yielding import ITEMS_PER_STEP
from support.logs import NOW_MS, batch, new_engine, settings

ME, OTHER = BrokerId(1), BrokerId(2)


def topic(name: str, partitions: int = 2, *, leader: BrokerId = ME, epoch: int = 0) -> TopicImage:
    images = tuple(PartitionImage(index, leader, epoch, (ME, OTHER), (ME, OTHER)) for index in range(partitions))
    return TopicImage(name, uuid.uuid4(), images)


class Here:
    """The partitions of one broker, and a disk that can be stopped."""

    def __init__(self, folder: Path) -> None:
        self.files = FaultyFiles(folder)
        self.engine: SegmentedEngine = new_engine(folder / "logs", files=self.files)
        clock = ManualClock(NOW_MS)
        self.replicas = Replicas(
            ME,
            {"segmented": self.engine},
            lambda topic, image: settings(),
            LeaderLease(clock, lambda: inf, 1000),
            LagRules(max_ms=1000, max_messages=0),
        )
        brokers = {id: BrokerInfo(id, "127.0.0.1", 9092) for id in (ME, OTHER)}
        self.image = MetadataImage(1, "cluster", brokers, ME, {}, {})
        self._disk = threading.Event()
        self._disk.set()

    async def open(self) -> None:
        await self.replicas.open(self.image)
        await self.replicas.begin()

    def change(self, **topics: TopicImage | None) -> None:
        """The metadata says this of these topics."""
        kept = {**self.image.topics, **topics}
        new = replace(
            self.image,
            version=self.image.version + 1,
            topics={name: found for name, found in kept.items() if found is not None},
        )
        old, self.image = self.image, new
        self.replicas.change(old, new)

    async def append(self, at: TopicPartition) -> None:
        await self.replicas.find(*at).append(memoryview(batch(b"value")), 1)

    def hold_removals(self) -> None:
        """Nothing is removed from the disk from now on."""
        self._disk.clear()

        def wait(what: str, path: Path) -> None:
            if what == "rename" and path.is_dir():
                self._disk.wait()

        self.files.on_operation = wait

    def let_removals_go_on(self) -> None:
        self._disk.set()


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    made = Here(tmp_path)
    await made.open()
    yield made
    made.let_removals_go_on()
    await made.replicas.close()


async def test_a_topic_is_made_while_the_removal_of_another_waits_for_the_disk(here: Here) -> None:
    here.change(slow=topic("slow"))
    await here.replicas.applied()
    await here.append(TopicPartition("slow", 0))
    here.hold_removals()
    here.change(slow=None)
    here.change(quick=(quick := topic("quick")))
    await here.replicas.applied(["quick"])
    assert here.replicas.has_applied(quick)
    await here.append(TopicPartition("quick", 1))
    everything = asyncio.ensure_future(here.replicas.applied())
    removal = asyncio.ensure_future(here.replicas.applied(["slow"]))
    done, _ = await asyncio.wait({everything, removal}, timeout=0.05)
    assert not done and not here.replicas.is_settled
    here.let_removals_go_on()
    await asyncio.gather(everything, removal)
    assert here.replicas.is_settled


async def test_a_new_leader_is_known_while_the_removal_of_another_topic_waits_for_the_disk(here: Here) -> None:
    kept = topic("kept")
    here.change(slow=topic("slow"), kept=kept)
    await here.replicas.applied()
    await here.append(TopicPartition("slow", 0))
    here.hold_removals()
    here.change(slow=None)
    moved = tuple(replace(each, leader=OTHER, leader_epoch=1) for each in kept.partitions)
    here.change(kept=replace(kept, partitions=moved))
    await here.replicas.applied(["kept"])
    assert here.replicas.find("kept", 0).leader == OTHER
    with pytest.raises(ApiError):
        await here.append(TopicPartition("kept", 0))


async def test_what_follows_in_one_topic_waits_for_what_was_before(here: Here) -> None:
    """A topic of the same name is made when the one before it is gone, and not from what that one has left."""
    here.change(again=topic("again", 3))
    await here.replicas.applied()
    await here.append(TopicPartition("again", 0))
    here.hold_removals()
    here.change(again=None)
    fresh = topic("again", 2)
    here.change(again=fresh)
    grown = replace(fresh, partitions=(*fresh.partitions, PartitionImage(2, ME, 0, (ME, OTHER), (ME, OTHER))))
    here.change(again=grown)
    waiting = asyncio.ensure_future(here.replicas.applied(["again"]))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done and not here.replicas.has_applied(fresh)
    here.let_removals_go_on()
    await waiting
    assert here.replicas.has_applied(grown)
    for index in range(3):
        found = here.replicas.find("again", index)
        assert (found.log.topic_id, found.log.end_offset) == (fresh.id, 0)


async def test_others_have_their_turn_while_thousands_of_partitions_come_and_go(here: Here) -> None:
    made: list[int] = [0]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0)
            made.append(len(here.engine.logs))

    watching = asyncio.ensure_future(watch())
    here.change(many=topic("many", 2000))
    await here.replicas.applied()
    assert len(here.engine.logs) == 2000
    turns_to_make = len(made)
    assert max(after - before for before, after in pairwise(made)) <= ITEMS_PER_STEP
    # Logs are made, partitions are made of them, and roles are given.
    assert turns_to_make >= 3 * 2000 // ITEMS_PER_STEP
    here.change(many=None)
    await here.replicas.applied()
    assert len(made) - turns_to_make >= 2000 // ITEMS_PER_STEP
    assert not here.engine.logs
    watching.cancel()


async def test_roles_are_those_of_the_last_image_however_fast_images_come(here: Here) -> None:
    many = topic("many", 300)
    here.change(many=many)
    for epoch in range(1, 6):
        leader = OTHER if epoch % 2 else ME
        partitions = tuple(replace(each, leader=leader, leader_epoch=epoch) for each in many.partitions)
        here.change(many=replace(many, partitions=partitions))
    await here.replicas.applied()
    roles = {(found.leader, found.leader_epoch) for found in here.replicas}
    assert roles == {(OTHER, 5)}
    assert len(list(here.replicas)) == 300


async def test_a_partition_is_appended_to_at_once_when_its_topic_is_applied(here: Here) -> None:
    here.change(many=topic("many", 1000))
    await here.replicas.applied(["many"])
    partition = here.replicas.find("many", 999)
    await partition.append(memoryview(batch(b"value")), ALL_IN_SYNC)
    assert partition.log.end_offset == 1
