"""What the controller does without being asked, as decisions."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.controller import maintenance
from penstock.cluster.coordination.contract import Create, Delete
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.config.draining import DRAINING
from penstock.config.retired import RETIRED_SETTING
from penstock.ids import BrokerId

LIMITS = maintenance.MaintenanceLimits(moves=3, leaders=2)


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def clean(topic: TopicImage) -> bool:
    return False


def partition(*replicas: int, leader: int | None = None, in_sync: tuple[int, ...] | None = None) -> PartitionImage:
    first = replicas[0] if leader is None else leader
    return PartitionImage(0, BrokerId(first), 5, ids(*replicas), ids(*(replicas if in_sync is None else in_sync)))


def cluster(
    *partitions: PartitionImage,
    count: int = 4,
    dead: tuple[int, ...] = (),
    drained: int = 0,
    racks: str = "",
    retired: str = "",
) -> MetadataDraft:
    """`racks` has a letter for each broker."""
    infos = {
        id: BrokerInfo(id, "host", 9092, racks[id - 1] if racks else None, is_alive=id not in dead)
        for id in ids(*range(1, count + 1))
    }
    overrides = {RETIRED_SETTING: retired} if retired else {}
    topic = TopicImage("t", UUID(int=7), tuple(replace(each, index=i) for i, each in enumerate(partitions)), overrides)
    settings = {BrokerId(drained): {DRAINING.name: "true"}} if drained else {}
    return MetadataDraft(MetadataImage(1, "cluster", infos, BrokerId(1), {"t": topic}, {}, settings_by_broker=settings))


def tidy(draft: MetadataDraft, gone: tuple[int, ...] = (), may_even: bool = False) -> tuple[PartitionImage, ...]:
    maintenance.tidy(draft, ids(*gone), LIMITS, clean, may_even=may_even)
    return draft.topics["t"].partitions


def test_all_that_are_missing_are_buried_and_none_of_them_follows_another() -> None:
    draft = cluster(partition(1, 2, 3))
    assert maintenance.bury_missing(draft, ids(1, 2), clean) == [1, 2]
    assert draft.alive == {3, 4}
    assert (draft.topics["t"].partitions[0].leader, draft.topics["t"].partitions[0].in_sync) == (3, ids(3))


def test_those_that_die_together_with_all_that_is_in_sync_keep_their_places() -> None:
    draft = cluster(partition(1, 2, 3, in_sync=(1, 2)))
    maintenance.bury_missing(draft, ids(1, 2), clean)
    assert (draft.topics["t"].partitions[0].leader, draft.topics["t"].partitions[0].in_sync) == (NO_LEADER, ids(1, 2))


def test_who_is_buried_must_not_have_a_lease_and_who_is_dead_already_is_left_alone() -> None:
    draft = cluster(partition(1), dead=(2,))
    assert maintenance.bury_missing(draft, ids(1, 2), clean) == [1]
    assert draft.conditions == [Create("/leases/broker-1", b""), Delete("/leases/broker-1", 0)]


def test_there_is_nothing_to_do_in_a_sound_cluster() -> None:
    draft = cluster(partition(1, 2), partition(2, 1), partition(3, 4), partition(4, 3))
    tidy(draft, may_even=True)
    assert not draft.is_touched


def test_leadership_goes_home_a_few_at_a_time() -> None:
    draft = cluster(*(partition(1, 2, leader=2) for _ in range(5)))
    assert [each.leader for each in tidy(draft)] == [1, 1, 2, 2, 2]


def test_leadership_does_not_go_to_who_is_behind_or_away_or_drained() -> None:
    assert tidy(cluster(partition(1, 2, leader=2, in_sync=(2,))))[0].leader == 2
    assert tidy(cluster(partition(1, 2, leader=2), dead=(1,)))[0].leader == 2
    kept = tidy(cluster(partition(1, 2, leader=2), drained=1, count=2))[0]
    assert kept.leader == 2


def test_replicas_leave_who_is_gone_a_few_at_a_time() -> None:
    draft = cluster(*(partition(1, 2, in_sync=(1,)) for _ in range(5)), dead=(2,))
    moved = tidy(draft, gone=(2,))
    assert [each.removing for each in moved] == [ids(2)] * 3 + [()] * 2
    assert {each.adding for each in moved[:3]} <= {ids(3), ids(4)}
    assert not any(each.is_moving for each in tidy(cluster(partition(1, 2, in_sync=(1,)), dead=(2,))))


def test_nothing_is_moved_without_a_leader_and_what_has_none_leaves_room_for_others() -> None:
    stuck = partition(2, leader=NO_LEADER)
    draft = cluster(stuck, *(partition(1, 2, in_sync=(1,)) for _ in range(3)), dead=(2,))
    assert [each.is_moving for each in tidy(draft, gone=(2,))] == [False, True, True, True]


def test_a_move_to_somebody_who_is_gone_goes_elsewhere() -> None:
    moving = PartitionImage(0, BrokerId(1), 5, ids(1, 3, 2), ids(1), adding=ids(3), removing=ids(2))
    (moved,) = tidy(cluster(moving, dead=(2, 3)), gone=(2, 3))
    assert (moved.replicas, moved.adding, moved.removing) == (ids(1, 4, 2), ids(4), ids(2))


def test_moves_that_get_nowhere_leave_room_for_others() -> None:
    stuck = [replace(partition(1, 2), replicas=ids(1, 3, 2), adding=ids(3), removing=ids(2))] * 3
    draft = cluster(*stuck, partition(1, 2, in_sync=(1,)), count=5, dead=(2, 3))
    assert [each.adding for each in tidy(draft, gone=(2,))][3] in (ids(4), ids(5))


def test_what_is_nearest_to_being_lost_is_healed_first() -> None:
    sound = [partition(1, 2, 3, in_sync=(1, 2)) for _ in range(3)]
    last = [partition(1, 3, in_sync=(1,)) for _ in range(3)]
    moved = tidy(cluster(*sound, *last, dead=(3,)), gone=(3,))
    assert [each.is_moving for each in moved] == [False] * 3 + [True] * 3


def test_who_is_back_meanwhile_is_left_alone() -> None:
    draft = cluster(partition(1, 2, in_sync=(1,)))
    tidy(draft, gone=(2,))
    assert not draft.is_touched


def test_a_move_away_from_who_is_back_ends_or_is_given_up_when_it_cannot() -> None:
    moving = PartitionImage(0, BrokerId(1), 5, ids(1, 3, 2), ids(1, 2), adding=ids(3), removing=ids(2))
    draft = cluster(moving, count=3)
    assert tidy(draft) == (moving,)
    (moved,) = tidy(cluster(moving, count=3, dead=(3,)), gone=(3,))
    assert (moved.replicas, moved.in_sync, moved.is_moving) == (ids(1, 2), ids(1, 2), False)


def test_more_replicas_than_brokers_that_are_left_stay_where_they_are() -> None:
    draft = cluster(partition(1, 2, 3, in_sync=(1,)), partition(1, 2, in_sync=(1,)), count=3, dead=(2, 3))
    tidy(draft, gone=(2, 3), may_even=True)
    assert not draft.is_touched


def test_as_many_replicas_are_placed_elsewhere_as_there_are_brokers_for() -> None:
    (moved,) = tidy(cluster(partition(1, 2, 3, in_sync=(1,)), dead=(2, 3)), gone=(2, 3))
    assert (moved.target, moved.adding) in ((ids(1, 4, 3), ids(4)), (ids(1, 2, 4), ids(4)))


def test_a_drained_broker_that_dies_is_left_at_once() -> None:
    draft = cluster(partition(2, 1, leader=1, in_sync=(1,)), partition(2, leader=NO_LEADER), drained=2, dead=(2,))
    moved, lost = tidy(draft)
    assert moved.removing == ids(2)
    assert lost == replace(partition(2, leader=NO_LEADER), index=1), "it has what nobody else has"


def test_a_replica_goes_to_a_rack_that_has_none() -> None:
    (moved,) = tidy(cluster(partition(1, 2, in_sync=(1,)), dead=(2,), racks="aaba"), gone=(2,))
    assert moved.adding == ids(3)


def test_replicas_that_had_to_share_a_rack_part_when_they_can() -> None:
    draft = cluster(partition(1, 2), racks="aabb")
    (moved,) = tidy(draft, may_even=True)
    assert moved.adding in (ids(3), ids(4))
    assert moved.replicas[0] == 1, "the leader stays"
    draft = cluster(partition(1, 2), racks="aabb", dead=(3, 4))
    tidy(draft, may_even=True)
    assert not draft.is_touched


def test_a_retired_partition_is_left_where_it_is_while_nobody_leads_its_successor() -> None:
    draft = cluster(partition(2, leader=NO_LEADER), partition(1, 2, in_sync=(1,)), dead=(2,), retired="1:0")
    before = tidy(draft, gone=(2,))
    again = cluster(*before, dead=(2,), retired="1:0")
    assert tidy(again, gone=(2,)) == before


def test_a_retired_partition_leaves_who_is_gone_together_with_its_successor() -> None:
    draft = cluster(partition(1, 2, in_sync=(1,)), partition(1, 2, in_sync=(1,)), dead=(2,), retired="1:0")
    active, retired = tidy(draft, gone=(2,))
    assert active.adding == retired.adding
    assert active.removing == retired.removing == ids(2)


def test_it_is_noted_once_since_when_a_broker_is_away() -> None:
    draft = cluster(partition(1), dead=(2,))
    maintenance.note_absences(draft, 1_000)
    maintenance.note_absences(draft, 2_000)
    assert [broker.away_since_ms for broker in draft.brokers.values()] == [None, 1_000, None, None]


def test_moves_that_are_done_are_finished_and_make_room() -> None:
    done = PartitionImage(0, BrokerId(2), 5, ids(1, 3, 2), ids(1, 3, 2), adding=ids(3), removing=ids(2))
    (moved,) = tidy(cluster(done))
    assert (moved.replicas, moved.in_sync, moved.leader, moved.is_moving) == (ids(1, 3), ids(1, 3), 1, False)


def test_a_drained_broker_is_left() -> None:
    (moved,) = tidy(cluster(partition(1, 2), drained=2, count=3))
    assert (moved.replicas, moved.adding, moved.removing) == (ids(1, 3, 2), ids(3), ids(2))


def test_a_topic_that_asks_for_it_is_led_by_whoever_is_there() -> None:
    draft = cluster(partition(1, 2, leader=NO_LEADER, in_sync=(1,)), dead=(1,))
    maintenance.tidy(draft, (), LIMITS, lambda topic: True, may_even=False)
    assert draft.topics["t"].partitions[0].leader == 2


@given(st.data())
def test_a_cluster_becomes_whole_whatever_it_has_been_through(data: st.DataObject) -> None:
    """With followers that catch up, all that can be done is done after some steps, and then nothing more."""
    count = data.draw(st.integers(3, 5))
    dead = data.draw(st.sets(st.integers(1, count), max_size=count - 2))
    replicas = st.permutations(range(1, count + 1)).map(lambda order: tuple(order[:2]))
    partitions = [
        partition(*each, leader=next((b for b in each if b not in dead), NO_LEADER), in_sync=each)
        for each in data.draw(st.lists(replicas, min_size=1, max_size=8))
    ]
    draft = cluster(*partitions, count=count, dead=tuple(dead))
    for _ in range(100):
        before = draft.topics["t"]
        maintenance.tidy(draft, ids(*dead), LIMITS, clean, may_even=True)
        for each in draft.topics["t"].partitions:
            assert each.leader == NO_LEADER or each.leader in each.in_sync
            if each.leader != NO_LEADER:
                alive = tuple(broker for broker in each.replicas if broker in draft.alive)
                draft.put_partition("t", replace(each, in_sync=alive))
        if draft.topics["t"] == before:
            break
    else:
        raise AssertionError("it goes on for ever")
    for each in draft.topics["t"].partitions:
        if each.leader != NO_LEADER:
            assert not each.is_moving
            assert dead.isdisjoint(each.replicas)
            assert each.leader == each.replicas[0]
