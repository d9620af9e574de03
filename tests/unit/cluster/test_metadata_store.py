"""The metadata on a broker: what others commit, what is lost on the way, what is too much for one commit."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from penstock.cluster import metadata_store, nodes
from penstock.cluster.coordination.contract import MAX_COMMIT_BYTES, Change, Check, Create, Put, commit_bytes
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.image_reader import with_found
from penstock.cluster.image_writer import commits
from penstock.cluster.metadata import (
    BrokerInfo,
    DatabaseGroupInfo,
    DatabaseServer,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.cluster.metadata_store import MetadataStore
from penstock.errors import ConflictError, CoordinationError
from penstock.ids import BrokerId, new_topic_id

ONE, OTHER = BrokerId(1), BrokerId(2)


class Tree(EmbeddedCoordination):
    """An embedded tree that loses answers: before or after the commit, the caller cannot tell."""

    lost_before = 0
    lost_after = 0
    made: Sequence[Sequence[Change]] = ()

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        if self.lost_before:
            self.lost_before -= 1
            raise CoordinationError("no answer")
        clock = await super().commit(*changes, seen=seen)
        self.made = [*self.made, changes]
        if self.lost_after:
            self.lost_after -= 1
            raise CoordinationError("no answer")
        return clock


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[Tree]:
    tree = await Tree.open(tmp_path / "coordination.db")
    assert isinstance(tree, Tree)
    yield tree
    await tree.close()


async def started(tree: Tree) -> MetadataStore:
    made = MetadataStore(tree, None)
    await made.start()
    return made


def topic(name: str, *, partitions: int = 1, epoch: int = 0) -> TopicImage:
    return TopicImage(
        name,
        new_topic_id(),
        tuple(PartitionImage(index, ONE, epoch, (ONE, OTHER), (ONE,)) for index in range(partitions)),
    )


def group(name: str, *, generation: int = 0) -> DatabaseGroupInfo:
    return DatabaseGroupInfo(name, (DatabaseServer("mysql://user@host:3306/db", "sealed"),), generation=generation)


def bump(draft: MetadataDraft) -> int:
    """A decision that is not the same when it is made twice."""
    epoch = draft.brokers[ONE].epoch + 1 if ONE in draft.brokers else 1
    draft.put_broker(BrokerInfo(ONE, "host", 9092, epoch=epoch))
    return epoch


class TestUnknownOutcomes:
    async def test_a_commit_that_took_place_is_not_made_again(self, tree: Tree) -> None:
        one = await started(tree)
        tree.lost_after = 1
        assert await one.change(bump) == 1
        assert one.image.brokers[ONE].epoch == 1

    async def test_a_commit_that_did_not_take_place_is_made_again(self, tree: Tree) -> None:
        one = await started(tree)
        tree.lost_before = 1
        assert await one.change(bump) == 1
        assert one.image.brokers[ONE].epoch == 1

    async def test_it_is_given_up_after_some_and_known_later(self, tree: Tree) -> None:
        one = await started(tree)
        tree.lost_before = metadata_store.UNKNOWN_OUTCOMES
        with pytest.raises(CoordinationError):
            await one.change(bump)
        assert await one.change(bump) == 1

    async def test_a_conflict_beside_the_image_is_the_callers(self, tree: Tree) -> None:
        one = await started(tree)

        def decide(draft: MetadataDraft) -> None:
            bump(draft)
            draft.conditions.append(Check(nodes.PRODUCER_IDS, 7))

        with pytest.raises(ConflictError):
            await one.change(decide)
        assert one.image.brokers == {}


class TestLargeTopics:
    async def test_they_are_decided_written_and_read_aside_of_the_event_loop(
        self, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = await started(tree), await started(tree)
        large, threads = topic("large", partitions=2000), dict[str, bool]()

        def noted(name: str, work: Callable[..., object]) -> Callable[..., object]:
            def call(*given: object) -> object:
                threads[name] = threading.current_thread() is threading.main_thread()
                return work(*given)

            return call

        monkeypatch.setattr(metadata_store, "commits", noted("commits", commits))
        monkeypatch.setattr(metadata_store, "with_found", noted("with_found", with_found))
        await one.change(noted("decide", lambda draft: draft.put_topic(large)), partitions=2000)
        assert (await other.refresh()).topics == {"large": large}
        assert threads == {"decide": False, "commits": False, "with_found": False}
        await one.change(noted("decide", lambda draft: draft.put_topic(topic("small"))))
        await other.refresh()
        assert threads == {"decide": True, "commits": True, "with_found": True}
        assert other.image.topics == one.image.topics
        await one.close()
        await other.close()


class TestParts:
    def test_what_fits_is_one_commit(self) -> None:
        draft = MetadataDraft(MetadataImage(1, "c", {}, ONE, {}, {}))
        for number in range(100):
            draft.put_topic(topic(str(number)))
        assert len(commits(draft, {})) == 1

    def test_who_comes_is_there_first_and_who_goes_goes_last_with_conditions_everywhere(self) -> None:
        for is_alive in (True, False):
            draft = MetadataDraft(MetadataImage(1, "c", {}, ONE, {}, {}))
            for number in range(40):
                draft.put_topic(topic(str(number), partitions=1000))
            draft.put_broker(BrokerInfo(ONE, "host", 9092, is_alive=is_alive))
            lease = Create(nodes.lease_path(ONE), b"", leased=True)
            condition = Check(nodes.CONTROLLER, 3)
            draft.beside.append(lease)
            draft.conditions.append(condition)
            made = commits(draft, {})
            assert len(made) > 1
            assert all(commit_bytes(changes) <= MAX_COMMIT_BYTES for changes in made)
            assert all(changes[0] == condition for changes in made)
            with_lease = made[0] if is_alive else made[-1]
            assert [changes for changes in made if lease in changes] == [with_lease]
            assert any(change.path == nodes.broker_path(ONE) for change in with_lease)

    async def test_thousands_of_topics_are_changed_in_parts_and_seen_at_once(self, tree: Tree) -> None:
        one, other = await started(tree), await started(tree)
        seen: list[int] = []
        one.subscribe(lambda old, new: seen.append(len(new.topics)))
        tree.made = ()

        def decide(draft: MetadataDraft) -> None:
            for number in range(3_000):
                if str(number) not in draft.topics:
                    draft.put_topic(topic(str(number), partitions=5))

        await one.change(decide)
        assert len(tree.made) > 1
        assert seen == [3_000]
        assert await other.refresh() == one.image


async def test_what_is_read_bit_by_bit_is_what_is_there(tree: Tree) -> None:
    one, other = await started(tree), await started(tree)
    chance = random.Random(5)
    names = [f"t{number}" for number in range(6)]

    def step(draft: MetadataDraft) -> None:
        name = chance.choice(names)
        match chance.randrange(8):
            case 0 | 1:
                draft.put_topic(topic(name, partitions=chance.randint(1, 3), epoch=chance.randrange(9)))
            case 2 if name in draft.topics:
                draft.remove_topic(name)
            case 3:
                bump(draft)
                draft.put_controller(ONE, chance.randrange(9))
            case 4:
                draft.put_database(group(name, generation=chance.randrange(9)))
            case 5 if name in draft.databases:
                draft.remove_database(name)
            case 6:
                draft.put_settings(chance.choice([None, ONE]), {"log.retention.ms": str(chance.randrange(9))})
            case _:
                draft.put_group_settings(name, chance.choice([{}, {"penstock.paused": "true"}]))

    for number in range(150):
        await chance.choice([one, other]).change(step)
        if number % 10 == 0:
            whole = await (await started(tree)).refresh()
            assert await one.refresh() == await other.refresh() == whole
            assert whole.version == await tree.clock()


async def test_what_is_below_a_database_group_is_not_part_of_the_image(tree: Tree) -> None:
    one = await started(tree)
    await one.change(lambda draft: draft.put_database(group("orders")))
    await tree.commit(Create(f"{nodes.database_path('orders')}/primary", b'{"server":"host:3306"}', leased=True))
    assert (await one.refresh()).databases == {"orders": group("orders")}
    assert (await started(tree)).image == one.image


async def test_a_group_that_was_changed_by_a_commit_without_an_answer_is_not_changed_again(tree: Tree) -> None:
    one = await started(tree)
    await one.change(lambda draft: draft.put_database(group("orders")))
    tree.lost_after = 1

    def promote(draft: MetadataDraft) -> int:
        generation = draft.databases["orders"].generation + 1
        draft.put_database(group("orders", generation=generation))
        return generation

    assert await one.change(promote) == 1
    assert one.image.databases["orders"].generation == 1


async def test_what_somebody_else_commits_is_told_without_being_asked_for(tree: Tree) -> None:
    one = await started(tree)
    told = asyncio.Event()
    one.subscribe(lambda old, new: told.set())
    await tree.commit(Put(nodes.DEFAULT_SETTINGS, b'{"log.retention.ms":"5"}', 0))
    async with asyncio.timeout(30):
        await told.wait()
    assert one.image.broker_settings == {"log.retention.ms": "5"}


async def test_a_tree_from_before_there_were_clusters_is_understood(tree: Tree) -> None:
    old = (
        Create(nodes.CLUSTER, nodes.encode_cluster("old")),
        Create(nodes.BROKERS, b""),
        Create(nodes.broker_path(ONE), b'{"host":"127.0.0.1","port":9092,"rack":null}'),
        Create(nodes.TOPICS, b""),
        Create(nodes.topic_path("t"), nodes.encode_topic(topic("t"))),
        Create(nodes.SETTINGS, b""),
        Create(nodes.DEFAULT_SETTINGS, b"{}"),
        Create(nodes.PRODUCER_IDS, nodes.encode_next_producer_id(7)),
    )
    await tree.commit(*old)
    image = (await started(tree)).image
    assert (image.cluster_id, image.controller_epoch) == ("old", 0)
    assert image.brokers == {ONE: BrokerInfo(ONE, "127.0.0.1", 9092)}
    assert list(image.topics) == ["t"]
    assert await tree.get(nodes.LEASES) is not None


async def test_a_tree_that_was_emptied_or_has_gone_back_is_not_taken_for_one_without_topics(
    tree: Tree, tmp_path: Path
) -> None:
    one = await started(tree)
    await one.change(lambda draft: draft.put_topic(topic("t")))
    path = tmp_path / "other.db"
    other = await Tree.open(path)
    assert isinstance(other, Tree)
    one._coordination = other
    with pytest.raises(CoordinationError, match="has gone back"):
        await one.refresh()
    for version in range(200):
        await other.commit(Create("/a", b"") if version == 0 else Put("/a", b"", version - 1))
    with pytest.raises(CoordinationError, match="missing"):
        await one.refresh()
    assert list(one.image.topics) == ["t"]
    await other.close()
