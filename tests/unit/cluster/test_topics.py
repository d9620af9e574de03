"""Decisions about topics, without a tree and without a clock."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.cluster.decisions.topics import (
    MorePartitions,
    ReplicaAssignment,
    TopicCreation,
    TopicRules,
    add_partitions,
    check_name,
    create_topic,
    delete_topic,
)
from penstock.cluster.metadata import BrokerInfo, MetadataImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId

ID = UUID(int=7)
RULES = TopicRules(default_partitions=3, default_replication_factor=1, partitions_per_topic=10, partitions=20)


def cluster(brokers: int = 1) -> MetadataDraft:
    infos = {BrokerId(id): BrokerInfo(BrokerId(id), "host", 9092) for id in range(1, brokers + 1)}
    return MetadataDraft(MetadataImage(1, "cluster", infos, BrokerId(1), {}, {}))


def create(draft: MetadataDraft, request: TopicCreation, rules: TopicRules = RULES) -> TopicImage:
    topic = create_topic(draft, request, ID, rules, {})
    draft.put_topic(topic)
    return topic


def refusal(draft: MetadataDraft, request: TopicCreation | MorePartitions, rules: TopicRules = RULES) -> ApiError:
    with pytest.raises(ApiError) as caught:
        if isinstance(request, TopicCreation):
            create_topic(draft, request, ID, rules, {})
        else:
            add_partitions(draft, request, rules)
    assert caught.value.message
    return caught.value


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


class TestNames:
    @pytest.mark.parametrize("name", ["a", "A-Z_0.9", "...", "x" * 249, "_schemas", "-"])
    def test_kafkas_names_are_accepted(self, name: str) -> None:
        check_name(name)

    @pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "\0", "a:b"])
    def test_other_names_are_refused(self, name: str) -> None:
        assert refusal(cluster(), TopicCreation(name)).code is Code.INVALID_TOPIC_EXCEPTION

    @pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c")])
    def test_names_that_differ_in_dot_and_underscore_alone_are_refused(self, first: str, second: str) -> None:
        draft = cluster()
        create(draft, TopicCreation(first))
        assert refusal(draft, TopicCreation(second)).code is Code.INVALID_TOPIC_EXCEPTION

    def test_after_a_colliding_topic_is_deleted_the_name_is_free(self) -> None:
        draft = cluster()
        create(draft, TopicCreation("a.b"))
        refusal(draft, TopicCreation("a_b"))
        draft.remove_topic("a.b")
        create(draft, TopicCreation("a_b"))

    def test_a_dash_collides_with_nothing(self) -> None:
        draft = cluster()
        create(draft, TopicCreation("a.b"))
        create(draft, TopicCreation("a-b"))

    def test_kafkas_metadata_topic_cannot_be_created(self) -> None:
        assert refusal(cluster(), TopicCreation("__cluster_metadata")).code is Code.INVALID_REQUEST

    def test_a_name_that_is_taken_is_refused(self) -> None:
        draft = cluster()
        create(draft, TopicCreation("a_b"))
        assert refusal(draft, TopicCreation("a_b")).code is Code.TOPIC_ALREADY_EXISTS


class TestCreate:
    def test_what_is_not_said_takes_the_default(self) -> None:
        topic = create(cluster(), TopicCreation("orders"))
        assert (topic.name, topic.id, len(topic.partitions), topic.replication_factor) == ("orders", ID, 3, 1)
        assert not topic.is_internal

    def test_a_new_partition_is_led_by_its_first_replica_in_epoch_zero(self) -> None:
        topic = create(cluster(3), TopicCreation("orders", 2, 3))
        for index, partition in enumerate(topic.partitions):
            assert partition.index == index
            assert partition.leader == partition.replicas[0]
            assert partition.leader_epoch == 0
            assert sorted(partition.replicas) == [1, 2, 3]
            assert partition.in_sync == partition.replicas

    def test_leaders_are_spread_over_the_brokers_across_topics(self) -> None:
        draft = cluster(3)
        leaders = [create(draft, TopicCreation(name, 1)).partitions[0].leader for name in ("a", "b", "c")]
        leaders += [partition.leader for partition in create(draft, TopicCreation("d", 3)).partitions]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]

    def test_brokers_that_are_away_or_drained_get_nothing(self) -> None:
        draft = cluster(4)
        draft.put_broker(BrokerInfo(BrokerId(2), "host", 9092, is_alive=False))
        draft.put_settings(BrokerId(3), {"penstock.draining": "true"})
        topic = create(draft, TopicCreation("a", 4, 2))
        assert all(sorted(partition.replicas) == [1, 4] for partition in topic.partitions)
        assert refusal(draft, TopicCreation("b", 1, 3)).code is Code.INVALID_REPLICATION_FACTOR
        away = TopicCreation("b", assignments=(ReplicaAssignment(0, ids(1, 2)),))
        assert refusal(draft, away).code is Code.INVALID_REPLICA_ASSIGNMENT
        told = TopicCreation("b", assignments=(ReplicaAssignment(0, ids(3, 1)),))
        assert create(draft, told).partitions[0].replicas == ids(3, 1)

    def test_the_topic_of_committed_offsets_is_internal(self) -> None:
        assert create(cluster(), TopicCreation("__consumer_offsets")).is_internal

    @pytest.mark.parametrize("count", [0, -2, -(2**31)])
    def test_a_count_of_partitions_below_one_is_refused(self, count: int) -> None:
        assert refusal(cluster(), TopicCreation("a", count)).code is Code.INVALID_PARTITIONS

    @pytest.mark.parametrize("factor", [0, -2, 2, 32767])
    def test_a_replication_factor_that_cannot_be_had_is_refused(self, factor: int) -> None:
        assert refusal(cluster(), TopicCreation("a", 1, factor)).code is Code.INVALID_REPLICATION_FACTOR

    def test_without_a_broker_nothing_can_be_placed(self) -> None:
        assert refusal(cluster(0), TopicCreation("a")).code is Code.INVALID_REPLICATION_FACTOR

    @pytest.mark.parametrize("count", [11, 2**31 - 1])
    def test_more_partitions_than_a_topic_may_have_are_refused(self, count: int) -> None:
        error = refusal(cluster(), TopicCreation("a", count))
        assert error.code is Code.INVALID_PARTITIONS
        assert "limits.partitions_per_topic" in str(error)

    def test_a_topic_that_the_coordination_tree_could_not_hold_is_refused_also_when_it_grows(self) -> None:
        rules = TopicRules(partitions_per_topic=20_000, partitions=100_000)
        draft = cluster(3)
        error = refusal(draft, TopicCreation("a", 15_000, 3), rules)
        assert error.code is Code.INVALID_PARTITIONS
        assert "too large for the coordination tree: 15000 partitions" in str(error)
        create(draft, TopicCreation("a", 10_000, 3), rules)
        assert refusal(draft, MorePartitions("a", 15_000), rules).code is Code.INVALID_PARTITIONS

    def test_more_partitions_than_the_cluster_may_have_are_refused(self) -> None:
        draft = cluster()
        create(draft, TopicCreation("a", 10))
        create(draft, TopicCreation("b", 9))
        error = refusal(draft, TopicCreation("c", 2))
        assert error.code is Code.INVALID_PARTITIONS
        assert "limits.partitions" in str(error)
        create(draft, TopicCreation("c", 1))


class TestSettingsOfNewTopics:
    def test_settings_are_kept_as_given(self) -> None:
        assert create(cluster(), TopicCreation("a", overrides={"retention.ms": "0100"})).overrides == {
            "retention.ms": "0100"
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [("retention.ms", "soon"), ("no.such", "1"), ("log.retention.ms", "1"), ("segment.ms", None)],
    )
    def test_a_setting_that_cannot_be_used_is_refused_by_name(self, name: str, value: str | None) -> None:
        error = refusal(cluster(), TopicCreation("a", overrides={name: value}))
        assert error.code is Code.INVALID_CONFIG
        assert name in str(error)

    def test_settings_are_checked_against_the_brokers_defaults(self) -> None:
        request = TopicCreation("a", overrides={"min.compaction.lag.ms": "100"})
        create_topic(cluster(), request, ID, RULES, {})
        with pytest.raises(ApiError) as caught:
            create_topic(cluster(), request, ID, RULES, {"max.compaction.lag.ms": "50"})
        assert caught.value.code is Code.INVALID_CONFIG


class TestManualAssignment:
    def test_partitions_are_placed_as_told_in_any_order(self) -> None:
        topic = create(
            cluster(3),
            TopicCreation("a", assignments=(ReplicaAssignment(1, ids(2, 3)), ReplicaAssignment(0, ids(3, 1)))),
        )
        assert [partition.replicas for partition in topic.partitions] == [(3, 1), (2, 3)]
        assert [partition.leader for partition in topic.partitions] == [3, 2]

    @pytest.mark.parametrize(("partitions", "factor"), [(1, -1), (-1, 1)])
    def test_an_assignment_beside_a_count_is_refused(self, partitions: int, factor: int) -> None:
        request = TopicCreation("a", partitions, factor, (ReplicaAssignment(0, ids(1)),))
        assert refusal(cluster(), request).code is Code.INVALID_REQUEST

    @pytest.mark.parametrize(
        "assignments",
        [
            pytest.param((ReplicaAssignment(0, ids(1)), ReplicaAssignment(0, ids(1))), id="same partition twice"),
            pytest.param((ReplicaAssignment(1, ids(1)),), id="does not start at zero"),
            pytest.param((ReplicaAssignment(0, ids(1)), ReplicaAssignment(2, ids(1))), id="gap"),
            pytest.param((ReplicaAssignment(-1, ids(1)), ReplicaAssignment(0, ids(1))), id="negative"),
            pytest.param((ReplicaAssignment(0, ids(9)),), id="unknown broker"),
            pytest.param((ReplicaAssignment(0, ids(1, 1)),), id="broker twice"),
            pytest.param((ReplicaAssignment(0, ()),), id="no broker"),
            pytest.param((ReplicaAssignment(0, ids(1, 2)), ReplicaAssignment(1, ids(1))), id="uneven"),
        ],
    )
    def test_an_assignment_that_makes_no_sense_is_refused(self, assignments: tuple[ReplicaAssignment, ...]) -> None:
        request = TopicCreation("a", assignments=assignments)
        assert refusal(cluster(3), request).code is Code.INVALID_REPLICA_ASSIGNMENT

    def test_assignments_are_bound_by_the_limits_too(self) -> None:
        request = TopicCreation("a", assignments=tuple(ReplicaAssignment(index, ids(1)) for index in range(11)))
        assert refusal(cluster(), request).code is Code.INVALID_PARTITIONS


class TestDelete:
    def test_an_unknown_topic_is_refused(self) -> None:
        with pytest.raises(ApiError) as caught:
            delete_topic(cluster(), "a")
        assert caught.value.code is Code.UNKNOWN_TOPIC_OR_PARTITION

    def test_a_known_topic_is_found(self) -> None:
        draft = cluster()
        topic = create(draft, TopicCreation("a"))
        assert delete_topic(draft, "a") is topic


class TestMorePartitions:
    @pytest.fixture
    def draft(self) -> MetadataDraft:
        draft = cluster(3)
        create(draft, TopicCreation("a", 2, 2))
        return draft

    def test_new_partitions_follow_the_old_ones_which_stay_as_they_are(self, draft: MetadataDraft) -> None:
        before = draft.topics["a"]
        after = add_partitions(draft, MorePartitions("a", 5), RULES)
        assert after.partitions[:2] == before.partitions
        assert [partition.index for partition in after.partitions] == [0, 1, 2, 3, 4]
        assert all(len(set(partition.replicas)) == 2 for partition in after.partitions)
        assert after.id == before.id

    def test_new_partitions_are_placed_as_told(self, draft: MetadataDraft) -> None:
        after = add_partitions(draft, MorePartitions("a", 4, (ids(3, 1), ids(2, 1))), RULES)
        assert [partition.replicas for partition in after.partitions[2:]] == [(3, 1), (2, 1)]

    @pytest.mark.parametrize("count", [2, 1, 0, -1, 11])
    def test_a_count_that_is_no_increase_or_above_the_limit_is_refused(self, draft: MetadataDraft, count: int) -> None:
        assert refusal(draft, MorePartitions("a", count)).code is Code.INVALID_PARTITIONS

    def test_the_limit_of_the_cluster_holds(self, draft: MetadataDraft) -> None:
        create(draft, TopicCreation("b", 10))
        create(draft, TopicCreation("c", 7))
        assert refusal(draft, MorePartitions("a", 4)).code is Code.INVALID_PARTITIONS
        add_partitions(draft, MorePartitions("a", 3), RULES)

    @pytest.mark.parametrize("assignments", [(), (ids(1, 2), ids(1, 2)), (ids(1),), (ids(1, 9),), (ids(1, 1),), ((),)])
    def test_an_assignment_that_makes_no_sense_is_refused(
        self, draft: MetadataDraft, assignments: tuple[tuple[BrokerId, ...], ...]
    ) -> None:
        error = refusal(draft, MorePartitions("a", 3, assignments))
        assert error.code is Code.INVALID_REPLICA_ASSIGNMENT

    def test_an_unknown_topic_is_refused(self, draft: MetadataDraft) -> None:
        assert refusal(draft, MorePartitions("b", 3)).code is Code.UNKNOWN_TOPIC_OR_PARTITION


class TestHarmfulSettings:
    def test_a_topic_cannot_want_more_replicas_in_sync_than_it_has(self) -> None:
        wanted = TopicCreation("a", 1, 2, overrides={"min.insync.replicas": "3"})
        refused = refusal(cluster(3), wanted)
        assert refused.code is Code.INVALID_CONFIG
        assert refused.message is not None
        assert "the topic has 2 replica(s)" in refused.message

    def test_a_topic_may_want_all_of_its_replicas_in_sync(self) -> None:
        create(cluster(3), TopicCreation("a", 1, 3, overrides={"min.insync.replicas": "3"}))
        assigned = TopicCreation(
            "b", assignments=(ReplicaAssignment(0, ids(1, 2)),), overrides={"min.insync.replicas": "2"}
        )
        create(cluster(3), assigned)

    @pytest.mark.parametrize(("interval", "is_taken"), [("0", False), ("1023", False), ("1024", True)])
    def test_an_index_does_not_get_an_entry_for_every_batch(self, interval: str, is_taken: bool) -> None:
        wanted = TopicCreation("a", overrides={"index.interval.bytes": interval})
        if is_taken:
            create(cluster(), wanted)
        else:
            assert refusal(cluster(), wanted).code is Code.INVALID_CONFIG
