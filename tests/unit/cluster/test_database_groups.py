"""Database groups: servers, primaries, where partitions are placed, and how they move while a group is drained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.controller import maintenance
from penstock.cluster.decisions import database_groups, elections, operator_requests, shared_storage
from penstock.cluster.decisions.database_groups import MOVES_AT_ONCE, GroupChange, PrimaryWatch
from penstock.cluster.decisions.topics import (
    MorePartitions,
    ReplicaAssignment,
    TopicCreation,
    TopicRules,
    add_partitions,
    create_topic,
)
from penstock.cluster.metadata import (
    NO_LEADER,
    OFFSETS_TOPIC,
    BrokerInfo,
    DatabaseGroupInfo,
    DatabaseServer,
    ListenerEndpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.draining import DRAINING
from penstock.config.retired import RETIRED_SETTING
from penstock.config.topic import STORAGE_SETTING
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId, TopicPartition

SQL = {STORAGE_SETTING: "sql"}
KEY = "fingerprint"
ID = UUID(int=7)
AT = TopicPartition("t", 0)
LIMITS = maintenance.MaintenanceLimits(moves=3, leaders=100)


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def server(name: str, user: str = "user") -> DatabaseServer:
    return DatabaseServer(f"mysql://{user}@{name}:3306/db", "sealed")


def group(name: str, *, replicas: int = 1, is_draining: bool = False) -> DatabaseGroupInfo:
    servers = tuple(server(f"{name}{number}") for number in range(1 + replicas))
    return DatabaseGroupInfo(name, servers, is_draining=is_draining)


def in_group(database: str, leader: int = 1, to: str | None = None) -> PartitionImage:
    return PartitionImage(0, BrokerId(leader), 5, ids(leader), ids(leader), database=database, database_to=to)


def topic(name: str, *partitions: PartitionImage, **overrides: str) -> TopicImage:
    numbered = tuple(replace(each, index=index) for index, each in enumerate(partitions))
    return TopicImage(name, ID, numbered, {**SQL, **overrides})


def cluster(
    *topics: TopicImage,
    groups: tuple[DatabaseGroupInfo, ...] = (),
    brokers: int = 2,
    without_key: tuple[int, ...] = (),
    drained: int = 0,
) -> MetadataDraft:
    infos = {
        id: BrokerInfo(
            id,
            "host",
            9092,
            endpoints=(ListenerEndpoint("PLAINTEXT", "host", 9092),),
            has_shared_storage=True,
            database_key="" if id in without_key else KEY,
        )
        for id in ids(*range(1, brokers + 1))
    }
    settings = {BrokerId(drained): {DRAINING.name: "true"}} if drained else {}
    return MetadataDraft(
        MetadataImage(
            1,
            "c",
            infos,
            BrokerId(1),
            {each.name: each for each in topics},
            {},
            settings_by_broker=settings,
            databases={each.name: each for each in groups},
        )
    )


def places(draft: MetadataDraft, name: str = "t") -> list[str]:
    return [partition.database for partition in draft.topics[name].partitions]


def targets(draft: MetadataDraft, name: str = "t") -> list[str | None]:
    return [partition.database_to for partition in draft.topics[name].partitions]


def epochs(draft: MetadataDraft, name: str = "t") -> list[int]:
    return [partition.leader_epoch for partition in draft.topics[name].partitions]


def leaders(draft: MetadataDraft, name: str = "t") -> list[int]:
    return [partition.leader for partition in draft.topics[name].partitions]


def create(draft: MetadataDraft, name: str, count: int, **more: object) -> TopicImage:
    request = TopicCreation(name, count, overrides=SQL, **more)  # type: ignore[arg-type]
    made = create_topic(draft, request, UUID(int=9), TopicRules(), {})
    draft.put_topic(made)
    return made


def tidy(draft: MetadataDraft) -> None:
    maintenance.tidy(draft, (), LIMITS, lambda topic: False, may_even=False)


class TestServers:
    def add(self, draft: MetadataDraft, name: str, *servers: DatabaseServer, key: str = KEY) -> None:
        database_groups.alter(draft, name, GroupChange(servers=servers, key=key))

    def test_the_first_server_of_a_new_group_is_its_primary(self) -> None:
        draft = cluster()
        self.add(draft, "orders", server("a"), server("b"))
        assert draft.databases == {"orders": DatabaseGroupInfo("orders", (server("a"), server("b")))}

    @pytest.mark.parametrize("name", ["", "default", "Orders", "a/b", "..", "a.b", "-a", "x" * 33])
    def test_a_name_that_cannot_be_one_is_refused(self, name: str) -> None:
        with pytest.raises(ApiError) as caught:
            self.add(cluster(), name, server("a"))
        assert caught.value.code is Code.INVALID_REQUEST

    def test_there_are_not_too_many_groups_or_servers(self) -> None:
        full = cluster(groups=tuple(group(f"g{number}") for number in range(database_groups.MAX_GROUPS)))
        with pytest.raises(ApiError, match="No more than 100"):
            self.add(full, "orders", server("a"))
        for count in (0, database_groups.MAX_SERVERS + 1):
            with pytest.raises(ApiError, match="1 to 16"):
                self.add(cluster(), "orders", *(server(f"s{number}") for number in range(count)))

    def test_a_server_is_in_one_group_whoever_the_user_is(self) -> None:
        draft = cluster(groups=(group("orders"),))
        with pytest.raises(ApiError, match="is a server of the group 'orders' already"):
            self.add(draft, "billing", server("b"), server("orders1", user="other"))
        with pytest.raises(ApiError, match="named twice"):
            self.add(draft, "billing", server("b"), server("b", user="other"))

    def test_two_databases_of_one_server_can_be_two_groups(self) -> None:
        draft = cluster(groups=(group("orders"),))
        self.add(draft, "billing", DatabaseServer("mysql://user@orders0:3306/other", "sealed"))
        assert set(draft.databases) == {"orders", "billing"}

    def test_a_replica_of_another_kind_is_refused(self) -> None:
        with pytest.raises(ApiError, match="another kind of database"):
            self.add(cluster(), "orders", server("a"), DatabaseServer("postgresql://user@b:5432/db", "sealed"))

    def test_brokers_with_different_keys_are_found_out(self) -> None:
        with pytest.raises(ApiError, match="Broker 1 has another key"):
            self.add(cluster(), "orders", server("a"), key="other")
        self.add(cluster(without_key=(2,)), "orders", server("a"))

    def test_a_broker_that_knows_no_groups_would_lose_what_is_said_of_them(self) -> None:
        draft = cluster()
        draft.put_broker(replace(draft.brokers[BrokerId(2)], endpoints=()))
        with pytest.raises(ApiError, match="Broker 2 is of a version"):
            self.add(draft, "orders", server("a"))

    def test_other_servers_can_be_given_to_a_group_as_long_as_the_primary_stays(self) -> None:
        draft = cluster(topic("t", in_group("orders")), groups=(replace(group("orders"), primary=1, generation=3),))
        self.add(draft, "orders", server("orders1", user="new"), server("c"))
        changed = draft.databases["orders"]
        assert (changed.primary, changed.generation) == (0, 3)
        assert changed.servers == (server("orders1", user="new"), server("c"))
        assert epochs(draft) == [5]
        with pytest.raises(ApiError, match="have to include its primary"):
            self.add(draft, "orders", server("c"))

    def test_the_same_change_again_changes_nothing(self) -> None:
        draft = cluster(groups=(group("orders"),))
        self.add(draft, "orders", *group("orders").servers)
        assert not draft.is_touched


class TestPromotion:
    def promote(self, draft: MetadataDraft, primary: str) -> None:
        database_groups.alter(draft, "orders", GroupChange(primary=primary))

    def test_every_partition_of_the_group_begins_a_new_epoch_with_the_same_leader(self) -> None:
        before = topic("t", in_group("orders"), in_group("default"), in_group("orders", leader=2))
        moving = topic("u", in_group("billing", to="orders"), in_group("orders", to="billing"), in_group("billing"))
        draft = cluster(before, moving, groups=(group("orders"), group("billing", is_draining=True)))
        self.promote(draft, "orders1:3306")
        assert (draft.databases["orders"].primary, draft.databases["orders"].generation) == (1, 1)
        assert (epochs(draft), leaders(draft)) == ([6, 5, 6], [1, 1, 2])
        assert (epochs(draft, "u"), targets(draft, "u")) == ([6, 6, 5], ["orders", "billing", None])

    def test_the_primary_stays_what_it_is(self) -> None:
        draft = cluster(topic("t", in_group("orders")), groups=(group("orders"),))
        self.promote(draft, "orders0:3306")
        assert not draft.is_touched

    def test_a_server_that_is_not_in_the_group_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(ApiError, match="no server other:3306; it has orders0:3306, orders1:3306"):
            self.promote(cluster(groups=(group("orders"),)), "other:3306")
        with pytest.raises(ApiError, match="There is no database group 'orders'"):
            self.promote(cluster(), "orders0:3306")

    def test_what_was_seen_in_an_earlier_generation_does_not_count(self) -> None:
        draft = cluster(groups=(replace(group("orders", replicas=2), primary=1, generation=4),))
        assert not database_groups.promote(draft, "orders", 2, generation=3)
        assert not draft.is_touched
        assert database_groups.promote(draft, "orders", 2, generation=4)
        assert database_groups.promote(draft, "orders", 2, generation=4)
        assert draft.databases["orders"].generation == 5

    def test_a_commit_has_the_group_before_its_partitions(self) -> None:
        from penstock.cluster.image_writer import commits

        draft = cluster(topic("t", in_group("orders")), groups=(group("orders"),))
        self.promote(draft, "orders1:3306")
        [changes] = commits(draft, {})
        assert [change.path for change in changes] == ["/databases/orders", "/topics/t"]


class TestWhoIsPrimary:
    GROUP = group("orders", replicas=2)

    @pytest.mark.parametrize("primary", [None, False])
    def test_the_one_replica_that_takes_writes_follows_a_primary_that_does_not(self, primary: bool | None) -> None:
        seen = {0: primary, 1: False, 2: True}
        assert PrimaryWatch().seen(self.GROUP, seen).successor(self.GROUP, seen) == 2

    @pytest.mark.parametrize(
        "seen",
        [
            {0: True, 1: True, 2: False},
            {0: None, 1: False, 2: None},
            {0: None, 1: True, 2: True},
            {0: None},
            {},
        ],
    )
    def test_nothing_follows_if_the_primary_is_well_or_it_is_not_clear_which(
        self, seen: dict[int, bool | None]
    ) -> None:
        assert PrimaryWatch().successor(self.GROUP, seen) is None

    def test_a_replica_that_took_writes_beside_the_primary_does_not_count_until_it_takes_none(self) -> None:
        watch = PrimaryWatch().seen(self.GROUP, {0: True, 1: True, 2: False})
        gone: dict[int, bool | None] = {0: None, 1: True, 2: False}
        watch = watch.seen(self.GROUP, gone)
        assert watch.suspects == {1}
        assert watch.successor(self.GROUP, gone) is None
        watch = watch.seen(self.GROUP, {0: None, 1: None, 2: False})
        assert watch.suspects == {1}
        watch = watch.seen(self.GROUP, {0: None, 1: False, 2: False}).seen(self.GROUP, gone)
        assert watch.successor(self.GROUP, gone) == 1

    def test_a_former_primary_that_comes_back_is_not_taken_for_the_next_one(self) -> None:
        after = replace(self.GROUP, primary=1, generation=1)
        watch = PrimaryWatch().seen(after, {0: None, 1: True, 2: False}).seen(after, {0: True, 1: True, 2: False})
        assert watch.successor(after, {0: True, 1: None, 2: False}) is None


class TestPlacement:
    def test_the_partitions_of_a_topic_are_spread_over_the_groups_then_by_how_many_each_has(self) -> None:
        draft = cluster(topic("old", *[in_group("default")] * 3, *[in_group("a")] * 2), groups=(group("a"), group("b")))
        create(draft, "new", 4)
        assert places(draft, "new") == ["b", "a", "default", "b"]
        create(draft, "one", 1)
        assert places(draft, "one") == ["b"]

    def test_new_partitions_of_a_topic_go_where_it_has_the_fewest(self) -> None:
        draft = cluster(topic("t", in_group("default"), in_group("default")), groups=(group("a"), group("b")))
        grown = add_partitions(draft, MorePartitions("t", 4), TopicRules())
        assert [each.database for each in grown.partitions] == ["default", "default", "a", "b"]

    def test_a_group_that_is_drained_gets_nothing(self) -> None:
        draft = cluster(groups=(group("a", is_draining=True),))
        create(draft, "new", 3)
        assert places(draft, "new") == ["default"] * 3

    def test_a_partition_that_moves_counts_where_it_goes(self) -> None:
        busy = topic("busy", *[in_group("a", to="b")] * 3, in_group("default"), in_group("default"))
        draft = cluster(busy, groups=(group("a", is_draining=True), group("b")))
        create(draft, "new", 1)
        assert places(draft, "new") == ["default"]

    def test_internal_topics_are_in_the_default_group(self) -> None:
        draft = cluster(groups=(group("a"),))
        create(draft, OFFSETS_TOPIC, 4)
        assert places(draft, OFFSETS_TOPIC) == ["default"] * 4

    def test_only_brokers_with_the_key_lead_what_is_in_a_group(self) -> None:
        draft = cluster(groups=(group("a"),), brokers=3, without_key=(1,))
        create(draft, "new", 6)
        by_group = {(each.database, each.leader) for each in draft.topics["new"].partitions}
        assert {leader for database, leader in by_group if database == "a"} == {2, 3}
        assert {leader for database, leader in by_group if database == "default"} >= {1}

    def test_without_a_broker_that_has_the_key_everything_is_in_the_default_group(self) -> None:
        draft = cluster(groups=(group("a"),), without_key=(1, 2))
        create(draft, "new", 3)
        assert places(draft, "new") == ["default"] * 3

    def test_partitions_that_are_assigned_by_hand_are_spread_too_where_the_broker_has_the_key(self) -> None:
        draft = cluster(groups=(group("a"),), without_key=(1,))
        assignments = tuple(ReplicaAssignment(index, ids(broker)) for index, broker in enumerate((1, 2, 2)))
        create(draft, "new", -1, assignments=assignments)
        assert places(draft, "new") == ["default", "default", "a"]
        grown = add_partitions(draft, MorePartitions("new", 5, (ids(2), ids(1))), TopicRules())
        assert [each.database for each in grown.partitions[3:]] == ["a", "default"]


class TestLeaders:
    def test_the_partitions_of_a_dead_broker_go_to_one_with_the_key(self) -> None:
        draft = cluster(
            topic("t", in_group("a", 3), in_group("default", 3)), groups=(group("a"),), brokers=3, without_key=(1,)
        )
        elections.bury(draft, BrokerId(3), lambda topic: False)
        assert leaders(draft) == [2, 1]

    def test_a_leader_that_comes_back_without_the_key_leads_only_what_is_in_the_default_group(self) -> None:
        draft = cluster(topic("t", in_group("a"), in_group("default")), groups=(group("a"),), without_key=(1,))
        elections.welcome(draft, BrokerId(1), has_all=True, is_unclean=lambda topic: False)
        assert (leaders(draft), epochs(draft)) == ([2, 1], [6, 6])

    def test_without_a_broker_that_has_the_key_nobody_leads(self) -> None:
        draft = cluster(topic("t", in_group("a"), in_group("default")), groups=(group("a"),), without_key=(1, 2))
        shared_storage.settle(draft)
        assert leaders(draft) == [NO_LEADER, 1]

    def test_who_moves_a_partition_needs_the_key_as_well(self) -> None:
        moving = in_group("a", to="default")
        assert moving.needs_database_key
        assert in_group("default", to="a").needs_database_key
        assert not in_group("default").needs_database_key

    def test_a_reassignment_to_a_broker_without_the_key_is_refused(self) -> None:
        draft = cluster(topic("t", in_group("a")), groups=(group("a"),), without_key=(2,))
        with pytest.raises(ApiError, match=r"broker 2, which has no sql\.key_file for the database group 'a'"):
            operator_requests.moved(draft, AT, ids(2), may_change_factor=True)
        with pytest.raises(ApiError) as caught:
            headless = replace(draft.topics["t"].partitions[0], leader=NO_LEADER, replicas=ids(2), in_sync=ids(2))
            draft.put_partition("t", headless)
            operator_requests.elected(draft, AT, is_unclean=True)
        assert caught.value.code is Code.ELIGIBLE_LEADERS_NOT_AVAILABLE

    def test_a_retired_partition_that_its_successors_leader_cannot_reach_has_a_leader_of_its_own(self) -> None:
        retired = topic("t", in_group("default", 1), in_group("a", 2), **{RETIRED_SETTING: "1:0"})
        draft = cluster(retired, groups=(group("a"),), brokers=3, without_key=(1,))
        draft.put_topic(retired)
        assert leaders(draft) == [1, 2]
        elections.bury(draft, BrokerId(2), lambda topic: False)
        assert leaders(draft) == [1, 3]
        elections.bury(draft, BrokerId(1), lambda topic: False)
        assert leaders(draft) == [3, 3]

    def test_a_drained_broker_leaves_what_another_one_can_lead(self) -> None:
        draft = cluster(
            topic("t", in_group("a", 2), in_group("default", 2)), groups=(group("a"),), without_key=(1,), drained=2
        )
        tidy(draft)
        assert leaders(draft) == [2, 1]

    @given(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from(("default", "a"))), max_size=14),
        st.sets(st.integers(1, 4), max_size=4),
        st.integers(0, 4),
    )
    def test_it_comes_to_rest_with_leaders_that_reach_what_they_lead(
        self, partitions: list[tuple[int, str]], without_key: set[int], drained: int
    ) -> None:
        made = topic("t", *(in_group(database, leader) for leader, database in partitions))
        draft = cluster(made, groups=(group("a"),), brokers=4, without_key=tuple(without_key), drained=drained)
        for _ in range(50):
            steady = MetadataDraft(draft.finish())
            tidy(steady)
            if not steady.is_touched:
                break
            draft = steady
        else:
            pytest.fail("it did not come to rest")
        with_key = {1, 2, 3, 4} - without_key
        for partition in draft.topics["t"].partitions:
            able = with_key if partition.database == "a" else {1, 2, 3, 4}
            assert partition.leader in (able or {NO_LEADER})
            assert partition.leader != drained or able == {drained}


class TestDraining:
    def drained(self, *partitions: PartitionImage, **more: object) -> MetadataDraft:
        groups = (group("a", is_draining=True), group("b"))
        return cluster(topic("t", *partitions), groups=groups, **more)  # type: ignore[arg-type]

    def test_a_few_partitions_move_at_a_time_to_where_the_topic_has_the_fewest(self) -> None:
        draft = self.drained(*[in_group("a")] * 20, *[in_group("b")] * 2, brokers=1)
        tidy(draft)
        assert Counter(targets(draft)) == {None: 22 - MOVES_AT_ONCE, "default": 5, "b": 3}
        assert epochs(draft) == [5] * 22
        again = MetadataDraft(draft.finish())
        assert database_groups.begin_moves(again) == 0

    def test_those_of_different_leaders_go_first_and_those_without_one_wait(self) -> None:
        draft = self.drained(*[in_group("a")] * 10, *[in_group("a", 2)] * 10, in_group("a", NO_LEADER))
        database_groups.begin_moves(draft)
        moving = [each for each in draft.topics["t"].partitions if each.database_to is not None]
        assert Counter(each.leader for each in moving) == {1: 4, 2: 4}

    def test_a_partition_that_is_copied_is_not_given_to_another_leader_for_the_sake_of_balance(self) -> None:
        draft = self.drained(*[in_group("a", to="b")] * 3, *[in_group("b")] * 3)
        tidy(draft)
        assert leaders(draft)[:3] == [1, 1, 1]
        assert Counter(leaders(draft)) == {1: 3, 2: 3}

    def test_a_move_without_a_leader_leaves_its_room_to_others(self) -> None:
        stuck = [in_group("a", NO_LEADER, to="b")] * MOVES_AT_ONCE
        draft = self.drained(*stuck, in_group("a"))
        assert database_groups.begin_moves(draft) == 1

    def test_the_drain_of_the_last_group_moves_everything_to_the_default_one(self) -> None:
        draft = cluster(topic("t", in_group("a")), groups=(group("a"),))
        database_groups.alter(draft, "a", GroupChange(is_draining=True))
        tidy(draft)
        assert targets(draft) == ["default"]

    def test_the_default_group_is_not_drained_and_not_removed(self) -> None:
        for change in (GroupChange(is_draining=True), GroupChange(is_removal=True), GroupChange(primary="a:1")):
            with pytest.raises(ApiError, match=r"the database of sql\.url"):
                database_groups.alter(cluster(), "default", change)

    def test_undoing_it_ends_the_moves(self) -> None:
        draft = self.drained(in_group("a", to="b"), in_group("a"))
        database_groups.alter(draft, "a", GroupChange(is_draining=False))
        assert not draft.databases["a"].is_draining
        assert (targets(draft), places(draft), epochs(draft)) == ([None, None], ["a", "a"], [5, 5])
        tidy(draft)
        assert targets(draft) == [None, None]

    def test_a_target_that_is_drained_too_is_left_and_another_one_is_found(self) -> None:
        draft = self.drained(in_group("a", to="b"))
        database_groups.alter(draft, "b", GroupChange(is_draining=True))
        assert targets(draft) == [None]
        tidy(draft)
        assert targets(draft) == ["default"]

    def test_a_group_is_removed_when_nothing_is_there_or_on_its_way_there(self) -> None:
        removal = GroupChange(is_removal=True)
        for partition in (in_group("b"), in_group("a", to="b"), in_group("b", to="a")):
            with pytest.raises(ApiError, match=r"The group 'b' has 1 partition \(t-0\); drain it first"):
                database_groups.alter(self.drained(partition), "b", removal)
        with pytest.raises(ApiError, match=r"has 5 partitions \(t-0, t-1, t-2, …\)"):
            database_groups.alter(self.drained(*[in_group("b")] * 5), "b", removal)
        draft = self.drained(in_group("default"))
        database_groups.alter(draft, "b", removal)
        assert set(draft.databases) == {"a"}
        with pytest.raises(ApiError, match="There is no database group 'b'"):
            database_groups.alter(draft, "b", removal)

    def finish(self, draft: MetadataDraft, leader: int = 1, epoch: int = 5, to: str = "b", id: UUID = ID) -> bool:
        return database_groups.finish_move(draft, AT, id, BrokerId(leader), epoch, to)

    def test_a_move_ends_in_the_target_with_a_new_epoch(self) -> None:
        draft = self.drained(in_group("a", to="b"))
        assert self.finish(draft)
        assert draft.topics["t"].partitions == (replace(in_group("b"), leader_epoch=6),)
        after = MetadataDraft(draft.finish())
        assert self.finish(after)
        assert not after.is_touched

    @pytest.mark.parametrize(
        ("partition", "asked"),
        [
            (in_group("a", to="b"), {"leader": 2}),
            (in_group("a", to="b"), {"epoch": 4}),
            (in_group("a", to="b"), {"epoch": 6}),
            (in_group("a", to="b"), {"to": "default"}),
            (in_group("a", to="b"), {"id": UUID(int=8)}),
            (in_group("a"), {}),
            (in_group("a"), {"epoch": 4}),
            (in_group("b"), {}),
        ],
    )
    def test_who_leads_no_more_or_moves_no_more_ends_nothing(
        self, partition: PartitionImage, asked: dict[str, object]
    ) -> None:
        draft = self.drained(partition)
        assert not self.finish(draft, **asked)  # type: ignore[arg-type]
        assert not draft.is_touched
        assert not database_groups.finish_move(draft, TopicPartition("t", 9), ID, BrokerId(1), 5, "b")
        assert not database_groups.finish_move(draft, TopicPartition("x", 0), ID, BrokerId(1), 5, "b")

    def test_a_new_leader_goes_on_with_the_move(self) -> None:
        draft = self.drained(in_group("a", to="b"))
        elections.bury(draft, BrokerId(1), lambda topic: False)
        assert draft.topics["t"].partitions[0].database_to == "b"
        assert not self.finish(draft)
        assert self.finish(draft, leader=2, epoch=6)

    def test_everything_is_moved_in_the_end(self) -> None:
        draft = self.drained(*[in_group("a", 1 + index % 2) for index in range(21)])
        for _ in range(30):
            draft = MetadataDraft(draft.finish())
            tidy(draft)
            moving = [each for each in draft.topics["t"].partitions if each.database_to is not None]
            if not moving:
                break
            assert len(moving) <= MOVES_AT_ONCE
            for each in moving[:3]:
                assert each.database_to is not None
                at = TopicPartition("t", each.index)
                assert database_groups.finish_move(draft, at, ID, each.leader, each.leader_epoch, each.database_to)
        assert sorted(Counter(places(draft)).values()) == [10, 11]
        assert "a" not in places(draft)
