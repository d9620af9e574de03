"""Changes of the metadata over the embedded tree: what is committed, what is told, what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cluster import metadata_store, nodes
from penstock.cluster.coordination.contract import Change, Create, Put
from penstock.cluster.coordination.embedded import EmbeddedCoordination
from penstock.cluster.decisions import database_groups
from penstock.cluster.decisions.database_groups import GroupChange
from penstock.cluster.decisions.settings import Increment, OperationKind, Replacement, SettingOperation
from penstock.cluster.decisions.topics import MorePartitions, ReplicaAssignment, TopicCreation, TopicRules
from penstock.cluster.metadata import (
    NO_LEADER,
    BrokerInfo,
    DatabaseServer,
    ListenerEndpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.cluster.metadata_changes import MetadataChanges, MetadataSettings
from penstock.config.broker import BrokerSettings, Config, Limits
from penstock.errors import ApiError, Code, ConfigError, ConflictError, CoordinationError
from penstock.ids import BrokerId, TopicPartition, new_topic_id
from support.tree import register

BROKER = BrokerId(1)
INFO = BrokerInfo(BROKER, "127.0.0.1", 9092)
SETTINGS = MetadataSettings("cluster", BROKER, TopicRules(default_partitions=2))


class Tree(EmbeddedCoordination):
    """An embedded tree that can be told to fail, or to let somebody else write first."""

    failures: int = 0
    interference: Sequence[Sequence[Change]] = ()

    async def commit(self, *changes: Change, seen: int | None = None) -> int:
        if self.failures:
            self.failures -= 1
            raise CoordinationError("the disk is gone")
        if self.interference:
            first, *self.interference = self.interference
            await super().commit(*first)
        return await super().commit(*changes, seen=seen)


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[Tree]:
    tree = await Tree.open(tmp_path / "coordination.db")
    assert isinstance(tree, Tree)
    yield tree
    await tree.close()


@pytest.fixture
async def metadata(tree: Tree) -> MetadataChanges:
    return await started(tree)


async def started(tree: Tree, settings: MetadataSettings = SETTINGS) -> MetadataChanges:
    metadata = MetadataChanges(tree, settings)
    await metadata.start()
    await register(metadata, INFO)
    return metadata


def foreign_topic(name: str) -> TopicImage:
    return TopicImage(name, new_topic_id(), (PartitionImage(0, BROKER, 0, (BROKER,), (BROKER,)),))


def code(result: object) -> Code:
    assert isinstance(result, ApiError)
    return result.code


class TestStart:
    async def test_a_new_tree_gives_an_empty_image(self, tree: Tree) -> None:
        image = await MetadataChanges(tree, SETTINGS).start()
        assert (image.cluster_id, image.controller) == ("cluster", NO_LEADER)
        assert (dict(image.topics), dict(image.brokers), dict(image.broker_settings)) == ({}, {}, {})

    async def test_before_the_start_there_is_no_image(self, tree: Tree) -> None:
        with pytest.raises(RuntimeError):
            _ = MetadataChanges(tree, SETTINGS).image

    async def test_everything_is_there_after_a_restart(self, tree: Tree, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a", overrides={"retention.ms": "5"}), TopicCreation("b", 1)])
        await metadata.delete_topics(["b"])
        await metadata.alter_broker_settings(
            {None: Replacement({"log.retention.ms": "7"}), BROKER: Replacement({"log.roll.ms": "8"})}
        )
        again = await started(tree)
        before, after = metadata.image, again.image
        assert after.topics == before.topics
        assert after.topic_names_by_id == before.topic_names_by_id == {before.topics["a"].id: "a"}
        assert after.brokers == before.brokers == {BROKER: INFO}
        assert after.broker_settings == before.broker_settings == {"log.retention.ms": "7"}
        assert after.settings_of(BROKER) == {"log.retention.ms": "7", "log.roll.ms": "8"}

    async def test_a_tree_of_another_cluster_is_refused(self, tree: Tree, metadata: MetadataChanges) -> None:
        with pytest.raises(ConfigError, match="belongs to cluster cluster"):
            await MetadataChanges(tree, MetadataSettings("other", BROKER)).start()

    async def test_settings_of_a_later_version_are_refused(self, tree: Tree, metadata: MetadataChanges) -> None:
        await tree.commit(Create(nodes.settings_path(BROKER), b'{"from.the.future":"1"}'))
        with pytest.raises(CoordinationError, match=r"from\.the\.future"):
            await MetadataChanges(tree, SETTINGS).start()

    def test_its_settings_come_from_the_configuration(self) -> None:
        config = Config(
            broker=BrokerSettings(id=4, default_partitions=6),
            limits=Limits(partitions_per_topic=7, partitions=8),
            topic={"retention.ms": "5"},
        )
        settings = MetadataSettings.of(config, "cluster")
        assert settings == MetadataSettings("cluster", BrokerId(4), TopicRules(6, 1, 7, 8), {"retention.ms": "5"})


class TestTopics:
    async def test_each_item_of_a_batch_stands_for_itself(self, metadata: MetadataChanges) -> None:
        results = await metadata.create_topics(
            [TopicCreation("a"), TopicCreation("bad name"), TopicCreation("a.b"), TopicCreation("a_b")]
        )
        assert results["a"] == metadata.image.topics["a"]
        assert code(results["bad name"]) is Code.INVALID_TOPIC_EXCEPTION
        assert code(results["a_b"]) is Code.INVALID_TOPIC_EXCEPTION
        assert sorted(metadata.image.topics) == ["a", "a.b"]

    async def test_topics_are_found_by_id(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a"), TopicCreation("b")])
        image = metadata.image
        assert image.topic_by_id(image.topics["b"].id) is image.topics["b"]
        assert image.topic_by_id(new_topic_id()) is None

    async def test_a_topic_created_again_has_another_id(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a")])
        first = metadata.image.topics["a"].id
        assert await metadata.delete_topics(["a"]) == {"a": None}
        await metadata.create_topics([TopicCreation("a")])
        assert metadata.image.topics["a"].id != first
        assert list(metadata.image.topic_names_by_id.values()) == ["a"]

    async def test_deleting_an_unknown_topic_is_refused_beside_one_that_goes(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a")])
        results = await metadata.delete_topics(["a", "b"])
        assert results["a"] is None
        assert code(results["b"]) is Code.UNKNOWN_TOPIC_OR_PARTITION
        assert dict(metadata.image.topics) == {}

    async def test_a_topic_is_deleted_only_under_the_id_it_has(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a")])
        results = await metadata.delete_topics(["a"], ids={"a": new_topic_id()})
        assert code(results["a"]) is Code.UNKNOWN_TOPIC_ID
        results = await metadata.delete_topics(["a"], ids={"a": metadata.image.topics["a"].id})
        assert results == {"a": None}

    async def test_validating_changes_nothing_and_says_what_would_be(
        self, tree: Tree, metadata: MetadataChanges
    ) -> None:
        before = metadata.image
        results = await metadata.create_topics([TopicCreation("a"), TopicCreation("")], validate_only=True)
        topic = results["a"]
        assert isinstance(topic, TopicImage) and len(topic.partitions) == 2
        assert code(results[""]) is Code.INVALID_TOPIC_EXCEPTION
        assert metadata.image is before
        assert await tree.children(nodes.TOPICS) == []

    async def test_partitions_are_added(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a", 1)])
        results = await metadata.create_partitions([MorePartitions("a", 3), MorePartitions("b", 3)])
        assert results["a"] is None
        assert code(results["b"]) is Code.UNKNOWN_TOPIC_OR_PARTITION
        assert len(metadata.image.topics["a"].partitions) == 3
        await metadata.create_partitions([MorePartitions("a", 9)], validate_only=True)
        assert len(metadata.image.topics["a"].partitions) == 3

    async def test_concurrent_creates_of_one_name_have_one_winner(self, metadata: MetadataChanges) -> None:
        results = await asyncio.gather(*(metadata.create_topics([TopicCreation("a")]) for _ in range(10)))
        created = [result["a"] for result in results if isinstance(result["a"], TopicImage)]
        assert created == [metadata.image.topics["a"]]


class TestSettings:
    async def test_topic_settings_are_altered_one_topic_at_a_time(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a"), TopicCreation("b", overrides={"segment.ms": "5"})])
        increment = Increment((SettingOperation("retention.ms", OperationKind.SET, "9"),))
        results = await metadata.alter_topic_settings(
            {"a": Replacement({"no.such": "1"}), "b": increment, "c": increment}
        )
        assert code(results["a"]) is Code.INVALID_CONFIG
        assert results["b"] is None
        assert code(results["c"]) is Code.UNKNOWN_TOPIC_OR_PARTITION
        assert metadata.image.topics["b"].overrides == {"segment.ms": "5", "retention.ms": "9"}

    async def test_new_topics_are_checked_against_dynamic_defaults(self, metadata: MetadataChanges) -> None:
        await metadata.alter_broker_settings({None: Replacement({"log.cleaner.max.compaction.lag.ms": "50"})})
        results = await metadata.create_topics([TopicCreation("a", overrides={"min.compaction.lag.ms": "60"})])
        assert code(results["a"]) is Code.INVALID_CONFIG

    async def test_a_broker_setting_is_refused_beside_one_that_goes_through(self, metadata: MetadataChanges) -> None:
        results = await metadata.alter_broker_settings(
            {None: Replacement({"broker.id": "2"}), BROKER: Replacement({"log.retention.ms": "1"})}
        )
        assert code(results[None]) is Code.INVALID_REQUEST
        assert results[BROKER] is None
        assert metadata.image.broker_settings == {}
        assert metadata.image.settings_of(BROKER) == {"log.retention.ms": "1"}


class TestDatabaseGroups:
    SERVER = DatabaseServer("mysql://user@host:3306/db", "sealed")
    REPLICA = DatabaseServer("mysql://user@replica:3306/db", "sealed")
    REMOVAL = GroupChange(is_removal=True)

    @pytest.fixture
    async def metadata(self, tree: Tree) -> MetadataChanges:
        """With the group "orders"."""
        metadata = await started(tree)
        endpoints = (ListenerEndpoint("PLAINTEXT", "127.0.0.1", 9092),)
        await register(metadata, replace(INFO, endpoints=endpoints, has_shared_storage=True, database_key="key"))
        added = GroupChange(servers=(self.SERVER, self.REPLICA), key="key")
        results = await metadata.alter_database_groups({"orders": added, "default": added})
        assert (results["orders"], code(results["default"])) == (None, Code.INVALID_REQUEST)
        return metadata

    async def test_groups_are_made_changed_and_removed_one_by_one(self, metadata: MetadataChanges) -> None:
        assert set(metadata.image.databases) == {"orders"}
        results = await metadata.alter_database_groups(
            {"orders": GroupChange(is_draining=True), "other": GroupChange(is_draining=True)}
        )
        assert (results["orders"], code(results["other"])) == (None, Code.INVALID_REQUEST)
        assert metadata.image.databases["orders"].is_draining
        for _ in range(2):
            assert await metadata.alter_database_groups({"orders": self.REMOVAL}, validate_only=True) == {
                "orders": None
            }
        results = await metadata.alter_database_groups({"orders": self.REMOVAL, "a/../b": self.REMOVAL})
        assert (results["orders"], code(results["a/../b"])) == (None, Code.INVALID_REQUEST)
        assert not metadata.image.databases

    async def test_the_leases_below_a_group_go_with_it(self, tree: Tree, metadata: MetadataChanges) -> None:
        path = nodes.database_path("orders")
        await tree.commit(
            Create(f"{path}/primary", b"{}", leased=True), Create(f"{path}/replica-1", b"{}", leased=True)
        )
        # One that comes after they were looked for.
        tree.interference = [[Create(f"{path}/replica-2", b"{}", leased=True)]]
        assert await metadata.alter_database_groups({"orders": self.REMOVAL}) == {"orders": None}
        assert await tree.get(path) is None
        assert await tree.children(nodes.DATABASES) == []

    async def test_a_server_is_promoted_once_for_what_was_seen(self, metadata: MetadataChanges) -> None:
        assert await metadata.promote_server("orders", 1, 0)
        assert not await metadata.promote_server("orders", 0, 0)
        assert not await metadata.promote_server("other", 0, 0)
        group = metadata.image.databases["orders"]
        assert (group.primary, group.generation) == (1, 1)

    async def test_a_partition_is_in_its_new_group_when_its_leader_says_so(self, metadata: MetadataChanges) -> None:
        made = await metadata.create_topics([TopicCreation("t", 2, overrides={"penstock.storage": "sql"})])
        topic = made["t"]
        assert isinstance(topic, TopicImage)
        assert [each.database for each in topic.partitions] == ["default", "orders"]
        await metadata.alter_database_groups({"orders": GroupChange(is_draining=True)})
        await metadata.change(database_groups.begin_moves)
        at = TopicPartition("t", 1)
        assert not await metadata.finish_database_move(at, topic.id, 3, "default")
        assert await metadata.finish_database_move(at, topic.id, 0, "default")
        after = metadata.image.topics["t"].partitions[1]
        assert (after.database, after.database_to, after.leader_epoch) == ("default", None, 1)


class TestSubscribers:
    async def test_they_see_old_and_new_in_order(self, metadata: MetadataChanges) -> None:
        seen: list[tuple[MetadataImage, MetadataImage]] = []
        metadata.subscribe(lambda old, new: seen.append((old, new)))
        first = metadata.image
        await metadata.create_topics([TopicCreation("a")])
        await metadata.delete_topics(["a"])
        assert [sorted(new.topics) for _, new in seen] == [["a"], []]
        assert seen[0][0] is first
        assert seen[0][1] is seen[1][0]
        assert seen[1][1] is metadata.image
        assert first.version < seen[0][1].version < seen[1][1].version

    async def test_a_change_that_changes_nothing_is_not_told(self, metadata: MetadataChanges) -> None:
        await metadata.create_topics([TopicCreation("a")])
        seen: list[MetadataImage] = []
        metadata.subscribe(lambda old, new: seen.append(new))
        await register(metadata, INFO)
        await metadata.create_topics([TopicCreation("a")])
        await metadata.alter_topic_settings({"a": Replacement({})})
        await metadata.alter_broker_settings({None: Replacement({})})
        assert seen == []

    async def test_one_that_raises_does_not_keep_the_others_from_hearing(self, metadata: MetadataChanges) -> None:
        def fail(old: MetadataImage, new: MetadataImage) -> None:
            raise RuntimeError("subscriber")

        seen: list[MetadataImage] = []
        metadata.subscribe(fail)
        unsubscribe = metadata.subscribe(lambda old, new: seen.append(new))
        await metadata.create_topics([TopicCreation("a")])
        assert seen == [metadata.image]
        unsubscribe()
        await metadata.create_topics([TopicCreation("b")])
        assert len(seen) == 1

    async def test_a_change_whose_caller_is_cancelled_is_still_told(self, metadata: MetadataChanges) -> None:
        told = asyncio.Event()
        metadata.subscribe(lambda old, new: told.set())
        caller = asyncio.create_task(metadata.create_topics([TopicCreation("a")]))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await metadata.close()
        assert told.is_set()
        assert list(metadata.image.topics) == ["a"]


class TestConflicts:
    async def test_what_somebody_else_wrote_is_read_before_deciding_again(
        self, tree: Tree, metadata: MetadataChanges
    ) -> None:
        theirs = foreign_topic("a")
        tree.interference = [[Create(nodes.topic_path("a"), nodes.encode_topic(theirs))]]
        results = await metadata.create_topics([TopicCreation("a"), TopicCreation("b")])
        assert code(results["a"]) is Code.TOPIC_ALREADY_EXISTS
        assert metadata.image.topics["a"] == theirs
        assert sorted(metadata.image.topics) == ["a", "b"]

    async def test_a_conflict_that_does_not_end_is_given_up(self, tree: Tree, metadata: MetadataChanges) -> None:
        await metadata.alter_broker_settings({None: Replacement({"log.retention.ms": "1"})})
        tree.interference = [
            [Put(nodes.DEFAULT_SETTINGS, b"{}", version)] for version in range(1, metadata_store.ATTEMPTS + 1)
        ]
        with pytest.raises(ConflictError):
            await metadata.alter_broker_settings({None: Replacement({"log.retention.ms": "2"})})
        assert tree.interference == []
        await metadata.alter_broker_settings({None: Replacement({"log.retention.ms": "3"})})
        assert metadata.image.broker_settings == {"log.retention.ms": "3"}

    async def test_after_a_failed_commit_the_tree_is_read_again(self, tree: Tree, metadata: MetadataChanges) -> None:
        tree.failures = metadata_store.UNKNOWN_OUTCOMES
        with pytest.raises(CoordinationError, match="disk is gone"):
            await metadata.create_topics([TopicCreation("a")])
        assert "a" not in metadata.image.topics
        # As if the commit had been made after all, its acknowledgement lost.
        theirs = foreign_topic("a")
        await tree.commit(Create(nodes.topic_path("a"), nodes.encode_topic(theirs)))
        results = await metadata.create_topics([TopicCreation("a")])
        assert code(results["a"]) is Code.TOPIC_ALREADY_EXISTS
        assert metadata.image.topics["a"] == theirs


class TestMoves:
    async def test_more_than_the_tree_can_hold_is_not_moved_at_once_and_less_is(self, tree: Tree) -> None:
        rules = TopicRules(partitions_per_topic=20_000, partitions=100_000)
        metadata = await started(tree, MetadataSettings("cluster", BROKER, rules))
        # Names as long as they can be, so that not so many partitions are needed.
        ids = [BrokerId(2_000_000_000 + number) for number in range(4)]
        for id in ids:
            await register(metadata, BrokerInfo(id, "127.0.0.1", 9092))
        placed = tuple(ReplicaAssignment(index, (ids[0], ids[1])) for index in range(4_000))
        await metadata.create_topics(
            [TopicCreation("a", assignments=placed), TopicCreation("b", assignments=placed[:1])]
        )
        before = metadata.image.topics["a"]
        everything = dict.fromkeys((TopicPartition("a", index) for index in range(4_000)), (ids[2], ids[3]))
        other = TopicPartition("b", 0)
        results = await metadata.reassign_partitions({**everything, other: (ids[2], ids[3])})
        assert {code(results[at]) for at in everything} == {Code.INVALID_PARTITIONS}
        assert results[other] is None
        assert metadata.image.topics["a"] == before
        some = dict(list(everything.items())[:100])
        assert set((await metadata.reassign_partitions(some)).values()) == {None}
        assert sum(partition.is_moving for partition in metadata.image.topics["a"].partitions) == 100


class TestProducerIds:
    async def test_blocks_never_overlap_also_across_restarts(self, tree: Tree, metadata: MetadataChanges) -> None:
        blocks = await asyncio.gather(*(metadata.allocate_producer_ids(100) for _ in range(5)))
        again = await started(tree)
        blocks.append(await again.allocate_producer_ids(50))
        blocks.append(await metadata.allocate_producer_ids(1))
        ids = [id for block in blocks for id in block]
        assert len(ids) == len(set(ids)) == 551
        assert min(ids) == 0

    async def test_a_failed_commit_hands_nothing_out(self, tree: Tree, metadata: MetadataChanges) -> None:
        tree.failures = 1
        with pytest.raises(CoordinationError):
            await metadata.allocate_producer_ids(10)
        assert await metadata.allocate_producer_ids(10) == range(10)

    async def test_somebody_else_taking_ids_meanwhile_is_taken_into_account(
        self, tree: Tree, metadata: MetadataChanges
    ) -> None:
        tree.interference = [[Put(nodes.PRODUCER_IDS, nodes.encode_next_producer_id(1000), 0)]]
        assert await metadata.allocate_producer_ids(10) == range(1000, 1010)

    async def test_an_empty_block_is_refused(self, metadata: MetadataChanges) -> None:
        with pytest.raises(ValueError):
            await metadata.allocate_producer_ids(0)
