"""Who leads what is in storage that all brokers reach: on creation, after deaths and returns, by hand, evened out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.controller import maintenance
from penstock.cluster.decisions import elections, operator_requests, shared_storage
from penstock.cluster.decisions.retired_partitions import without_last
from penstock.cluster.decisions.settings import (
    Increment,
    OperationKind,
    Replacement,
    SettingOperation,
    alter_topic_settings,
    effective_config,
)
from penstock.cluster.decisions.topics import (
    MorePartitions,
    ReplicaAssignment,
    TopicCreation,
    TopicRules,
    add_partitions,
    create_topic,
)
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.draining import DRAINING
from penstock.config.retired import RETIRED_SETTING
from penstock.config.topic import STORAGE_SETTING
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition

SQL = {STORAGE_SETTING: "sql"}
LIMITS = maintenance.MaintenanceLimits(moves=3, leaders=2)
RULES = TopicRules(default_partitions=3, default_replication_factor=3)


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def clean(topic: TopicImage) -> bool:
    return False


def on(leader: int, epoch: int = 5) -> PartitionImage:
    return PartitionImage(0, BrokerId(leader), epoch, ids(leader), ids(leader))


def cluster(
    *leaders: int,
    brokers: int = 3,
    dead: tuple[int, ...] = (),
    without: tuple[int, ...] = (),
    drained: int = 0,
    retired: str = "",
) -> MetadataDraft:
    """A topic in shared storage whose partitions have these leaders, and brokers of which some do not reach it."""
    infos = {
        id: BrokerInfo(id, "host", 9092, is_alive=id not in dead, has_shared_storage=id not in without)
        for id in ids(*range(1, brokers + 1))
    }
    overrides = {**SQL, RETIRED_SETTING: retired} if retired else SQL
    partitions = tuple(replace(on(leader), index=index) for index, leader in enumerate(leaders))
    topics = {"t": TopicImage("t", UUID(int=7), partitions, overrides)} if leaders else {}
    settings = {BrokerId(drained): {DRAINING.name: "true"}} if drained else {}
    return MetadataDraft(MetadataImage(1, "c", infos, BrokerId(1), topics, {}, settings_by_broker=settings))


def leaders(draft: MetadataDraft, topic: str = "t") -> list[int]:
    """The leaders; each is the only replica and alone in sync, if there is one."""
    for partition in draft.topics[topic].partitions:
        assert not partition.is_moving
        if partition.leader != NO_LEADER:
            assert partition.replicas == partition.in_sync == (partition.leader,)
    return [partition.leader for partition in draft.topics[topic].partitions]


def epochs(draft: MetadataDraft) -> list[int]:
    return [partition.leader_epoch for partition in draft.topics["t"].partitions]


def create(draft: MetadataDraft, request: TopicCreation, **defaults: str) -> TopicImage:
    named = {name.replace("_", "."): value for name, value in defaults.items()}
    topic = create_topic(draft, request, UUID(int=9), RULES, named)
    draft.put_topic(topic)
    return topic


class TestCreation:
    @pytest.mark.parametrize("factor", [-1, 1, 2, 3, 30])
    def test_every_partition_is_on_one_broker_whatever_factor_is_asked_for(self, factor: int) -> None:
        draft = cluster()
        create(draft, TopicCreation("new", 5, factor, overrides=SQL))
        assert sorted(Counter(leaders(draft, "new")).values()) == [1, 2, 2]

    @pytest.mark.parametrize("factor", [0, -2])
    def test_a_factor_that_means_nothing_is_refused(self, factor: int) -> None:
        with pytest.raises(ApiError) as caught:
            create(cluster(), TopicCreation("new", 5, factor, overrides=SQL))
        assert caught.value.code is Code.INVALID_REPLICATION_FACTOR

    def test_the_rest_goes_to_the_brokers_that_lead_the_fewest(self) -> None:
        draft = cluster(1, 2)
        create(draft, TopicCreation("new", 4, overrides=SQL))
        assert Counter(leaders(draft, "new")) == {1: 1, 2: 1, 3: 2}

    def test_brokers_that_are_away_or_drained_or_do_not_reach_the_storage_get_nothing(self) -> None:
        draft = cluster(brokers=5, dead=(1,), without=(2,), drained=3)
        create(draft, TopicCreation("new", 4, overrides=SQL))
        assert Counter(leaders(draft, "new")) == {4: 2, 5: 2}

    def test_it_is_refused_where_no_broker_reaches_the_storage(self) -> None:
        draft = cluster(dead=(3,), without=(1, 2))
        for request in (
            TopicCreation("new", 1, overrides=SQL),
            TopicCreation("new", assignments=(ReplicaAssignment(0, ids(1)),), overrides=SQL),
        ):
            with pytest.raises(ApiError, match="SQL storage") as caught:
                create(draft, request)
            assert caught.value.code in (Code.INVALID_CONFIG, Code.INVALID_REPLICA_ASSIGNMENT)

    def test_the_default_storage_is_noted_in_the_topic(self) -> None:
        draft = cluster()
        topic = create(draft, TopicCreation("new", 2), penstock_storage="sql")
        assert topic.is_shared
        assert topic.overrides == SQL
        assert not create(draft, TopicCreation("other", overrides={STORAGE_SETTING: "memory"})).is_shared

    def test_an_assignment_names_one_broker_that_reaches_the_storage(self) -> None:
        draft = cluster(without=(3,))
        create(draft, TopicCreation("new", assignments=(ReplicaAssignment(0, ids(2)),), overrides=SQL))
        assert leaders(draft, "new") == [2]
        for assigned, reason in (((1, 2), "names 2 brokers"), ((3,), "broker 3"), ((9,), "broker 9")):
            with pytest.raises(ApiError, match=reason) as caught:
                create(draft, TopicCreation("b", assignments=(ReplicaAssignment(0, ids(*assigned)),), overrides=SQL))
            assert caught.value.code is Code.INVALID_REPLICA_ASSIGNMENT

    def test_new_partitions_go_to_the_brokers_that_lead_the_fewest(self) -> None:
        draft = cluster(1, 1, 2)
        grown = add_partitions(draft, MorePartitions("t", 5), RULES)
        assert [each.leader for each in grown.partitions] == [1, 1, 2, 3, 2]
        with pytest.raises(ApiError, match="names 2 brokers"):
            add_partitions(draft, MorePartitions("t", 4, (ids(1, 2),)), RULES)

    def test_a_partition_begins_in_a_later_epoch_than_one_of_its_number_that_is_gone(self) -> None:
        draft = cluster(1, 2, 1, retired="2:0")
        topic = draft.topics["t"]
        gone = replace(topic.partitions[2], leader_epoch=9)
        draft.put_topic(without_last(replace(topic, partitions=(*topic.partitions[:2], gone))))
        assert epochs(draft) == [9, 5]
        for assignments in (None, (ids(3),)):
            grown = add_partitions(draft, MorePartitions("t", 3, assignments), RULES)
            assert (grown.partitions[2].leader, grown.partitions[2].leader_epoch) == (3, 10)

    def test_min_insync_replicas_is_no_matter_of_brokers(self) -> None:
        draft = cluster(1)
        create(draft, TopicCreation("new", 1, overrides={**SQL, "min.insync.replicas": "3"}))
        change = Increment((SettingOperation("min.insync.replicas", OperationKind.SET, "2"),))
        assert alter_topic_settings(draft, "t", change, {}).overrides["min.insync.replicas"] == "2"


class TestStorageOfATopic:
    def test_it_cannot_be_changed(self) -> None:
        draft = cluster(1)
        draft.put_topic(TopicImage("files", UUID(int=8), (on(1),)))
        for name, storage in (("t", "segmented"), ("t", "memory"), ("files", "sql"), ("files", "memory")):
            with pytest.raises(ApiError, match="cannot be changed") as caught:
                alter_topic_settings(
                    draft, name, Increment((SettingOperation(STORAGE_SETTING, OperationKind.SET, storage),)), {}
                )
            assert caught.value.code is Code.INVALID_CONFIG

    def test_it_stays_when_it_is_not_named(self) -> None:
        draft = cluster(1)
        for change in (
            Replacement({"retention.ms": "1000"}),
            Increment((SettingOperation(STORAGE_SETTING, OperationKind.DELETE),)),
        ):
            assert alter_topic_settings(draft, "t", change, {}).is_shared

    def test_a_topic_that_is_older_than_the_default_stays_where_it_is(self) -> None:
        old = TopicImage("files", UUID(int=8), (on(1),))
        assert effective_config(old, SQL).storage == "segmented"
        assert effective_config(cluster(1).topics["t"], {}).storage == "sql"
        draft = cluster()
        draft.put_topic(old)
        assert not alter_topic_settings(draft, "files", Replacement({"retention.ms": "1"}), SQL).is_shared


class TestDeathsAndReturns:
    def test_the_partitions_of_a_dead_broker_go_to_those_that_lead_the_fewest_in_new_epochs(self) -> None:
        draft = cluster(1, 1, 1, 1, 2, 2, 3)
        elections.bury(draft, BrokerId(1), clean)
        assert leaders(draft)[4:] == [2, 2, 3]
        assert Counter(leaders(draft)) == {2: 4, 3: 3}
        assert epochs(draft) == [6, 6, 6, 6, 5, 5, 5]

    def test_those_that_die_together_leave_nothing_to_each_other(self) -> None:
        draft = cluster(1, 2, 3)
        maintenance.bury_missing(draft, ids(1, 2), clean)
        assert leaders(draft) == [3, 3, 3]
        assert epochs(draft) == [6, 6, 5]

    def test_a_broker_that_does_not_reach_the_storage_inherits_nothing(self) -> None:
        draft = cluster(1, without=(2,))
        elections.bury(draft, BrokerId(1), clean)
        assert leaders(draft) == [3]

    def test_without_a_broker_nobody_leads_and_the_first_that_comes_leads_everything(self) -> None:
        draft = cluster(1, 2, dead=(2, 3))
        elections.bury(draft, BrokerId(1), clean)
        assert leaders(draft) == [NO_LEADER, NO_LEADER]
        maintenance.tidy(draft, ids(1, 2), LIMITS, clean, may_even=True)
        assert leaders(draft) == [NO_LEADER, NO_LEADER]
        before = epochs(draft)
        draft.put_broker(replace(draft.brokers[BrokerId(3)], is_alive=True))
        elections.welcome(draft, BrokerId(3), has_all=True, is_unclean=clean)
        assert leaders(draft) == [3, 3]
        assert all(after > epoch for after, epoch in zip(epochs(draft), before, strict=True))

    def test_a_leader_that_comes_back_before_it_was_missed_leads_in_new_epochs(self) -> None:
        draft = cluster(1, 2)
        elections.welcome(draft, BrokerId(1), has_all=True, is_unclean=clean)
        assert leaders(draft) == [1, 2]
        assert epochs(draft) == [6, 5]

    def test_a_leader_that_comes_back_without_the_storage_leads_no_more(self) -> None:
        draft = cluster(1, 2, without=(1,))
        elections.welcome(draft, BrokerId(1), has_all=True, is_unclean=clean)
        assert leaders(draft) == [3, 2]

    def test_a_power_loss_loses_nothing_that_is_in_shared_storage(self) -> None:
        draft = cluster(1, brokers=1)
        elections.welcome(draft, BrokerId(1), has_all=False, is_unclean=clean)
        assert leaders(draft) == [1]

    def test_who_is_about_to_stop_hands_over_if_it_can(self) -> None:
        draft = cluster(1, 1, 2)
        elections.step_down(draft, BrokerId(1))
        assert leaders(draft) == [3, 2, 2]
        elections.resign(draft, BrokerId(1))
        assert leaders(draft) == [3, 2, 2]
        alone = cluster(1, without=(2, 3))
        elections.step_down(alone, BrokerId(1))
        assert (leaders(alone), epochs(alone)) == ([1], [5])

    def test_topics_with_replicas_are_elected_as_before(self) -> None:
        draft = cluster(1)
        draft.put_topic(TopicImage("files", UUID(int=8), (PartitionImage(0, BrokerId(1), 5, ids(1, 2), ids(1, 2)),)))
        elections.bury(draft, BrokerId(1), clean)
        assert draft.topics["files"].partitions[0] == PartitionImage(0, BrokerId(2), 6, ids(1, 2), ids(2))

    def test_a_retired_partition_goes_with_its_successor(self) -> None:
        draft = cluster(1, 2, 1, retired="2:0")
        elections.bury(draft, BrokerId(1), clean)
        assert leaders(draft) == [3, 2, 3]
        elections.bury(draft, BrokerId(2), clean)
        elections.bury(draft, BrokerId(3), clean)
        assert leaders(draft) == [NO_LEADER] * 3


class TestByHand:
    def move(self, draft: MetadataDraft, *target: int) -> PartitionImage:
        return operator_requests.moved(draft, TopicPartition("t", 0), ids(*target), may_change_factor=True)

    def test_a_partition_is_led_by_the_broker_that_is_named_at_once(self) -> None:
        after = self.move(cluster(1), 3)
        assert after == PartitionImage(0, BrokerId(3), 6, ids(3), ids(3))

    def test_where_it_is_already_nothing_changes(self) -> None:
        assert self.move(cluster(1), 1) == on(1)

    @pytest.mark.parametrize("target", [(), (1, 2), (2,), (9,)])
    def test_one_broker_that_reaches_the_storage_has_to_be_named(self, target: tuple[int, ...]) -> None:
        with pytest.raises(ApiError) as caught:
            self.move(cluster(1, dead=(2,)), *target)
        assert caught.value.code is Code.INVALID_REPLICA_ASSIGNMENT

    def test_there_is_no_move_to_be_cancelled(self) -> None:
        with pytest.raises(ApiError) as caught:
            operator_requests.moved(cluster(1), TopicPartition("t", 0), None, may_change_factor=True)
        assert caught.value.code is Code.NO_REASSIGNMENT_IN_PROGRESS

    def test_no_election_gives_it_to_a_broker_that_does_not_reach_the_storage(self) -> None:
        draft = cluster(1, brokers=1, without=(1,))
        shared_storage.settle(draft)
        assert leaders(draft) == [NO_LEADER]
        for is_unclean in (False, True):
            with pytest.raises(ApiError) as caught:
                operator_requests.elected(draft, TopicPartition("t", 0), is_unclean=is_unclean)
            assert caught.value.code in (Code.PREFERRED_LEADER_NOT_AVAILABLE, Code.ELIGIBLE_LEADERS_NOT_AVAILABLE)


def tidy(draft: MetadataDraft, moves: int = 3, leaders: int = 2) -> None:
    limits = maintenance.MaintenanceLimits(moves, leaders)
    maintenance.tidy(draft, (), limits, clean, may_even=True)


class TestEveningOut:
    def test_a_broker_that_has_come_gets_its_share_a_few_at_a_time(self) -> None:
        draft = cluster(1, 1, 1, 2, 2, 2)
        tidy(draft, leaders=1)
        assert sorted(Counter(leaders(draft)).values()) == [1, 2, 3]
        tidy(draft, leaders=1)
        assert sorted(Counter(leaders(draft)).values()) == [2, 2, 2]
        assert sum(epochs(draft)) == 6 * 5 + 2

    def test_what_is_even_stays(self) -> None:
        draft = cluster(1, 1, 2, 3)
        tidy(draft)
        assert not draft.is_touched

    def test_nothing_moves_where_automatic_moves_are_off(self) -> None:
        draft = cluster(1, 1, 1)
        tidy(draft, moves=0)
        assert not draft.is_touched

    def test_every_topic_is_spread_the_small_ones_too(self) -> None:
        draft = cluster(*[1] * 16, brokers=2)
        for number, count in enumerate((4, 16)):
            partitions = tuple(replace(on(1), index=index) for index in range(count))
            draft.put_topic(TopicImage(f"of {count}", UUID(int=number), partitions, SQL))
        tidy(draft, leaders=100)
        assert Counter(leaders(draft)) == Counter(leaders(draft, "of 16")) == {1: 8, 2: 8}
        assert Counter(leaders(draft, "of 4")) == {1: 2, 2: 2}

    def test_a_broker_that_is_drained_leads_nothing_in_the_end(self) -> None:
        draft = cluster(1, 1, 1, 2, 3, drained=1)
        tidy(draft, leaders=2)
        assert Counter(leaders(draft)) == {1: 1, 2: 2, 3: 2}
        tidy(draft, leaders=2)
        assert sorted(Counter(leaders(draft)).values()) == [2, 3]
        assert 1 not in leaders(draft)

    def test_the_only_broker_leads_although_it_is_drained(self) -> None:
        draft = cluster(1, brokers=2, without=(2,), drained=1)
        tidy(draft)
        assert leaders(draft) == [1]

    def test_partitions_in_shared_storage_are_no_load_and_no_move_for_the_others(self) -> None:
        draft = cluster(*[1] * 9, brokers=2, without=(2,))
        draft.put_topic(
            TopicImage(
                "files",
                UUID(int=8),
                tuple(PartitionImage(i, BrokerId(1 + i % 2), 5, ids(1 + i % 2), ids(1 + i % 2)) for i in range(4)),
            )
        )
        before = dict(draft.topics)
        tidy(draft)
        assert draft.topics == before
        assert [draft.loads.replicas_of(broker) for broker in ids(1, 2)] == [2, 2]

    @given(
        st.lists(st.lists(st.integers(1, 5), max_size=8), max_size=4),
        st.sets(st.integers(1, 5), max_size=3),
        st.sets(st.integers(1, 5), max_size=3),
        st.integers(0, 5),
    )
    def test_in_the_end_all_is_led_evenly_by_those_that_can(
        self, topics: list[list[int]], dead: set[int], without: set[int], drained: int
    ) -> None:
        draft = cluster(brokers=5, dead=tuple(dead), without=tuple(without), drained=drained)
        for number, led in enumerate(topics):
            partitions = tuple(replace(on(leader), index=index) for index, leader in enumerate(led))
            draft.put_topic(TopicImage(f"t{number}", UUID(int=number), partitions, SQL))
        for _ in range(100):
            steady = MetadataDraft(draft.finish())
            tidy(steady)
            if not steady.is_touched:
                break
            draft = steady
        else:
            pytest.fail("it did not come to rest")
        fit = {1, 2, 3, 4, 5} - dead - without
        takers = fit - {drained} or fit
        counts = Counter(leader for name in draft.topics for leader in leaders(draft, name))
        if not takers:
            assert set(counts) <= {NO_LEADER}
        else:
            assert set(counts) <= takers
            shares = [counts[BrokerId(broker)] for broker in takers]
            assert max(shares) - min(shares) <= 1
