"""Who leads after a death, a return, a resignation or a wish."""

from __future__ import annotations

from uuid import UUID

from penstock.cluster.decisions import elections
from penstock.cluster.metadata import NO_LEADER, BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.ids import BrokerId

ID = UUID(int=7)


def clean(topic: TopicImage) -> bool:
    return False


def unclean(topic: TopicImage) -> bool:
    return True


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def led(leader: int, in_sync: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), epoch: int = 5) -> PartitionImage:
    return PartitionImage(0, BrokerId(leader), epoch, ids(*replicas), ids(*in_sync))


def cluster(*partitions: PartitionImage, dead: tuple[int, ...] = ()) -> MetadataDraft:
    """Four brokers and one topic."""
    infos = {id: BrokerInfo(id, "host", 9092, is_alive=id not in dead) for id in ids(1, 2, 3, 4)}
    topic = TopicImage("t", ID, partitions)
    return MetadataDraft(MetadataImage(1, "cluster", infos, BrokerId(1), {"t": topic}, {ID: "t"}))


def found(draft: MetadataDraft) -> tuple[int, tuple[int, ...], int]:
    """Leader, in-sync set and epoch of the first partition."""
    partition = draft.topics["t"].partitions[0]
    return partition.leader, partition.in_sync, partition.leader_epoch


def test_the_first_replica_that_is_in_sync_and_alive_follows_a_dead_leader_in_a_new_epoch() -> None:
    draft = cluster(led(1, (1, 2, 3)))
    elections.bury(draft, BrokerId(1), clean)
    assert found(draft) == (2, (2, 3), 6)
    assert draft.alive == set(ids(2, 3, 4))


def test_nobody_who_is_out_of_sync_or_dead_is_elected() -> None:
    draft = cluster(led(1, (1, 3)), dead=(3,))
    elections.bury(draft, BrokerId(1), clean)
    assert found(draft) == (NO_LEADER, (1, 3), 6)


def test_of_those_that_died_at_once_the_first_that_comes_back_leads_alone() -> None:
    for first, other in ((1, 3), (3, 1)):
        draft = cluster(led(1, (1, 3)), dead=(1, 3))
        for dead in ids(1, 3):
            elections.bury(draft, dead, clean)
        assert found(draft) == (NO_LEADER, (1, 3), 6)
        back = cluster(draft.topics["t"].partitions[0], dead=(other,))
        elections.welcome(back, BrokerId(first), has_all=True, is_unclean=clean)
        assert found(back) == (first, (first,), 7)


def test_a_dead_follower_leaves_the_in_sync_set_and_the_leader_goes_on_in_a_new_epoch() -> None:
    draft = cluster(led(1, (1, 2, 3)))
    elections.bury(draft, BrokerId(3), clean)
    assert found(draft) == (1, (1, 2), 6)


def test_the_death_of_somebody_who_was_not_in_sync_changes_nothing_of_a_partition() -> None:
    draft = cluster(led(1, (1, 2)), led(4, (4,), replicas=(4,)))
    before = draft.topics["t"]
    elections.bury(draft, BrokerId(3), clean)
    assert draft.topics["t"] is before


def test_the_last_member_of_the_in_sync_set_keeps_its_place_when_it_dies() -> None:
    draft = cluster(led(1, (1,)))
    elections.bury(draft, BrokerId(1), clean)
    assert found(draft) == (NO_LEADER, (1,), 6)


def test_a_topic_that_allows_it_is_led_by_whoever_is_alive() -> None:
    draft = cluster(led(1, (1,)), dead=(2,))
    elections.bury(draft, BrokerId(1), unclean)
    assert found(draft) == (3, (3,), 6)


def test_a_partition_without_leader_is_led_by_the_in_sync_member_that_comes_back() -> None:
    draft = cluster(led(NO_LEADER, (2,)), dead=(1, 3))
    elections.welcome(draft, BrokerId(2), has_all=True, is_unclean=clean)
    assert found(draft) == (2, (2,), 6)


def test_the_return_of_somebody_who_was_not_in_sync_elects_nobody() -> None:
    draft = cluster(led(NO_LEADER, (2,)), dead=(2,))
    elections.welcome(draft, BrokerId(1), has_all=True, is_unclean=clean)
    assert found(draft) == (NO_LEADER, (2,), 5)


def test_a_follower_that_comes_back_with_everything_before_it_was_missed_stays_in_sync() -> None:
    draft = cluster(led(1, (1, 2, 3)))
    elections.welcome(draft, BrokerId(2), has_all=True, is_unclean=clean)
    assert found(draft) == (1, (1, 2, 3), 5)


def test_a_leader_that_comes_back_before_it_was_missed_leads_in_a_new_epoch() -> None:
    draft = cluster(led(1, (1, 2)))
    elections.welcome(draft, BrokerId(1), has_all=True, is_unclean=clean)
    assert found(draft) == (1, (1, 2), 6)


def test_a_leader_that_lost_something_hands_over_to_another_that_is_in_sync() -> None:
    draft = cluster(led(1, (1, 3)))
    elections.welcome(draft, BrokerId(1), has_all=False, is_unclean=clean)
    assert found(draft) == (3, (3,), 6)


def test_a_follower_that_lost_something_is_not_in_sync_any_more() -> None:
    draft = cluster(led(1, (1, 2)))
    elections.welcome(draft, BrokerId(2), has_all=False, is_unclean=clean)
    assert found(draft) == (1, (1,), 6)


def test_who_lost_something_begins_a_new_epoch_even_if_it_was_not_in_sync() -> None:
    """The leader would let it join on what it had fetched in its former life."""
    draft = cluster(led(1, (1, 3)))
    elections.welcome(draft, BrokerId(2), has_all=False, is_unclean=clean)
    assert found(draft) == (1, (1, 3), 6)


def test_the_last_member_in_sync_leads_with_what_it_has_left() -> None:
    draft = cluster(led(1, (1,)))
    elections.welcome(draft, BrokerId(1), has_all=False, is_unclean=clean)
    assert found(draft) == (1, (1,), 6)


def test_a_broker_that_steps_down_hands_over_and_stays_alive() -> None:
    draft = cluster(led(1, (1, 2, 3)), led(2, (2, 1)))
    elections.step_down(draft, BrokerId(1))
    assert found(draft) == (2, (2, 3), 6)
    other = draft.topics["t"].partitions[1]
    assert (other.leader, other.in_sync, other.leader_epoch) == (2, (2,), 6)
    assert BrokerId(1) in draft.alive


def test_a_broker_that_steps_down_keeps_what_nobody_else_can_lead() -> None:
    for partition, dead in ((led(1, (1,)), ()), (led(1, (1, 3)), (3,)), (led(2, (2, 3)), ())):
        draft = cluster(partition, dead=dead)
        elections.step_down(draft, BrokerId(1))
        assert not draft.is_touched


def test_a_broker_that_resigns_hands_over_and_is_not_alive() -> None:
    draft = cluster(led(1, (1, 2)))
    elections.resign(draft, BrokerId(1))
    assert found(draft) == (2, (2,), 6)
    assert BrokerId(1) not in draft.alive


def test_a_resignation_never_elects_uncleanly() -> None:
    draft = cluster(led(1, (1,)))
    elections.resign(draft, BrokerId(1))
    assert found(draft) == (NO_LEADER, (1,), 6)


def test_leadership_goes_home_only_to_a_preferred_replica_that_is_alive_and_in_sync() -> None:
    away = led(2, (1, 2))
    home = elections.prefer(away, ids(1, 2, 3))
    assert (home.leader, home.in_sync, home.leader_epoch) == (1, (1, 2), 6)
    assert elections.prefer(away, ids(2, 3)) is away
    behind = led(2, (2, 3))
    assert elections.prefer(behind, ids(1, 2, 3)) is behind
    assert elections.prefer(home, ids(1, 2, 3)) is home


def test_the_in_sync_set_is_changed_by_the_leader_of_the_epoch_and_nobody_else() -> None:
    partition = led(1, (1, 2, 3))
    alive = ids(1, 2, 3, 4)
    assert elections.with_in_sync(partition, BrokerId(1), 5, ids(3, 1), alive).in_sync == (1, 3)
    assert elections.with_in_sync(partition, BrokerId(1), 5, ids(3, 1), alive).leader_epoch == 5
    assert elections.with_in_sync(partition, BrokerId(1), 4, ids(1), alive) is partition
    assert elections.with_in_sync(partition, BrokerId(2), 5, ids(2), alive) is partition
    assert elections.with_in_sync(partition, BrokerId(1), 5, ids(1, 4), alive) is partition


def test_a_leader_that_leaves_the_in_sync_set_leaves_the_partition_to_the_first_that_is_left() -> None:
    after = elections.with_in_sync(led(1, (1, 2, 3)), BrokerId(1), 5, ids(2, 3), ids(1, 2, 3))
    assert (after.leader, after.in_sync, after.leader_epoch) == (2, (2, 3), 6)


def test_who_was_buried_while_it_caught_up_does_not_get_into_the_in_sync_set() -> None:
    draft = cluster(led(1, (1, 2)))
    elections.bury(draft, BrokerId(3), clean)
    assert found(draft) == (1, (1, 2), 5)
    wanted = elections.with_in_sync(draft.topics["t"].partitions[0], BrokerId(1), 5, ids(1, 3), draft.alive)
    assert wanted.in_sync == (1,)
    # Who is in it leaves it by a burial, and by nothing else.
    assert elections.with_in_sync(led(1, (1, 3)), BrokerId(1), 5, ids(1, 2, 3), ids(1, 2)).in_sync == (1, 2, 3)


def test_an_operator_may_give_up_what_the_in_sync_replicas_have_but_not_depose_a_leader() -> None:
    lost = elections.elect(led(NO_LEADER, (1,)), ids(2, 3), is_unclean=True)
    assert (lost.leader, lost.in_sync, lost.leader_epoch) == (2, (2,), 6)
    lead = led(1, (1,))
    assert elections.elect(lead, ids(2, 3), is_unclean=True) is lead
    nobody = led(NO_LEADER, (1,))
    assert elections.elect(nobody, ids(4), is_unclean=True) is nobody
