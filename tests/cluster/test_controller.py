"""A cluster that looks after itself: elections of controllers, deaths, healing, balance; with a real ZooKeeper."""

from __future__ import annotations

import asyncio

from penstock.clock import ManualClock
from penstock.cluster.decisions.settings import Increment, OperationKind, SettingOperation
from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.config.cluster import ClusterSettings
from penstock.config.draining import DRAINING

from .conftest import Join, eventually
from .members import Member, ids

CALM = ClusterSettings(heal_after_ms=60_000, balance_after_ms=60_000)


async def three(join: Join, settings: ClusterSettings = CALM, clock: ManualClock | None = None) -> list[Member]:
    """The first of them is the controller."""
    return [await join(number, settings=settings, clock=clock or ManualClock()) for number in (1, 2, 3)]


async def catch_up(leader: Member, name: str, index: int = 0) -> None:
    """All replicas are in sync, as the leader would say once they are."""
    await leader.metadata.refresh()
    await leader.put_in_sync(name, index, *leader.partition(name, index).replicas)


async def found(member: Member, name: str, what: str, *, leader: int, in_sync: tuple[int, ...]) -> PartitionImage:
    def look() -> PartitionImage | None:
        if name not in member.image.topics:
            return None
        partition = member.partition(name)
        return partition if (partition.leader, partition.in_sync) == (leader, ids(*in_sync)) else None

    partition = await eventually(look, what)
    assert partition is not None
    return partition


class TestElection:
    async def test_the_first_is_elected_and_the_others_know(self, join: Join) -> None:
        one, two, three_ = await three(join)
        assert [member.controller and member.controller.epoch for member in (one, two, three_)] == [1, None, None]
        for member in (one, two, three_):
            await eventually(lambda member=member: member.image.controller == 1, "the controller is known")

    async def test_of_two_candidates_one_is_elected(self, join: Join) -> None:
        members = await asyncio.gather(join(1, settings=CALM), join(2, settings=CALM))
        epochs = [member.controller.epoch for member in members if member.controller]
        assert sorted(epoch or 0 for epoch in epochs) == [0, 1]

    async def test_after_its_death_another_is_elected_in_a_higher_epoch_and_buries_it(self, join: Join) -> None:
        one, _, three_ = await three(join)
        await one.create("a", (1, 2, 3))
        await one.die()
        await found(three_, "a", "another leads", leader=2, in_sync=(2, 3))
        image = three_.image
        assert image.alive == {2, 3}
        assert image.controller in (2, 3)
        assert image.controller_epoch == 2

    async def test_who_leaves_gives_up_the_office_before_its_session_ends(self, join: Join) -> None:
        one, two, _ = await three(join)
        await one.membership.resign()
        assert one.controller is not None
        await one.controller.resign()
        await eventually(lambda: two.image.controller_epoch == 2, "another is elected")
        assert two.image.controller in (2, 3)
        assert one.controller.epoch is None

    async def test_after_it_lost_its_session_it_decides_nothing_in_its_former_epoch(self, join: Join) -> None:
        one, two, three_ = await three(join)
        one.lose_session()
        await eventually(lambda: one.membership.epoch == 2, "it is a member again")
        await eventually(lambda: two.image.controller_epoch == 2, "somebody is elected")
        epochs = [member.controller.epoch for member in (one, two, three_) if member.controller]
        assert sorted(epoch or 0 for epoch in epochs) == [0, 0, 2]

    async def test_a_controller_that_does_not_know_that_it_is_deposed_is_refused(self, join: Join) -> None:
        one, two = await join(1, settings=CALM), await join(2)
        # Somebody else is elected, against all rules while the lease is held: only the epoch can tell.
        await two.metadata.change(lambda draft: draft.put_controller(two.id, 2))
        await two.die()
        assert one.controller is not None
        await eventually(lambda: one.controller and one.controller.epoch is None, "it knows")
        assert (await one.metadata.refresh()).alive == {1, 2}

    async def test_a_process_started_again_takes_the_office_of_its_former_self_at_once(self, join: Join) -> None:
        one = await join(1, settings=CALM)
        assert one.controller is not None
        await one.controller.close()
        await one.membership.close()
        one.folder.close()
        again = await join(1, settings=CALM)
        assert again.controller is not None and again.controller.epoch == 2


class TestDeath:
    async def test_replicas_in_sync_follow_and_others_do_not(self, join: Join) -> None:
        one, two, _ = await three(join)
        await one.create("a", (2, 1, 3))
        await one.create("b", (2, 3))
        await two.put_in_sync("a", 0, 2, 3)
        await two.put_in_sync("b", 0, 2)
        await two.die()
        await found(one, "a", "the replica in sync leads", leader=3, in_sync=(3,))
        assert one.partition("b").leader == NO_LEADER
        assert one.partition("b").in_sync == ids(2)

    async def test_two_that_die_at_once_do_not_follow_each_other(self, join: Join) -> None:
        one, two, three_ = await three(join)
        await one.create("a", (2, 3, 1))
        await asyncio.gather(two.tree.close(), three_.tree.close())
        await found(one, "a", "the last one leads", leader=1, in_sync=(1,))

    async def test_what_died_leads_again_when_it_is_back_and_in_sync(self, join: Join) -> None:
        one, two, three_ = await three(join)
        await one.create("a", (2, 3))
        await two.die()
        await found(three_, "a", "the other leads", leader=3, in_sync=(3,))
        again = await join(2)
        await again.metadata.refresh()
        assert (again.partition("a").leader, again.partition("a").in_sync) == (3, ids(3))
        await catch_up(three_, "a")
        await found(again, "a", "leadership is home", leader=2, in_sync=(2, 3))

    async def test_who_came_back_before_it_was_missed_is_not_buried(self, join: Join) -> None:
        one, _, _ = await three(join)
        assert one.controller is not None
        one.controller._take_leases(["broker-1", "broker-3", "controller"])
        await eventually(lambda: not one.controller or not one.controller._leases_due.is_set(), "it has looked")
        await one.create("a", (2, 3))
        assert one.partition("a").leader == 2

    async def test_a_topic_that_asks_for_it_is_led_by_somebody_out_of_sync(self, join: Join) -> None:
        one, two, _ = await three(join)
        await one.create("a", (2, 3))
        await two.put_in_sync("a", 0, 2)
        await two.die()
        await eventually(lambda: one.partition("a").leader == NO_LEADER, "nobody leads")
        wanted = SettingOperation("unclean.leader.election.enable", OperationKind.SET, "true")
        await one.metadata.alter_topic_settings({"a": Increment((wanted,))})
        await found(one, "a", "the other one leads", leader=3, in_sync=(3,))


class TestHealing:
    async def test_replicas_of_a_broker_that_stays_away_are_placed_elsewhere(self, join: Join) -> None:
        clock = ManualClock()
        one, two, _ = await three(join, clock=clock)
        await one.create("a", (1, 2))
        await two.die()
        await found(one, "a", "it is buried", leader=1, in_sync=(1,))
        await eventually(lambda: one.controller and one.controller._away_since_ms, "it is missed")
        assert not one.partition("a").is_moving
        clock.advance(CALM.heal_after_ms)
        await eventually(lambda: one.partition("a").adding == ids(3), "a new replica is added")
        assert one.partition("a").removing == ids(2)
        assert (one.partition("a").leader, one.partition("a").in_sync) == (1, ids(1))
        await one.put_in_sync("a", 0, 1, 3)
        await eventually(lambda: one.partition("a").replicas == ids(1, 3), "the dead one is dropped")
        assert not one.partition("a").is_moving

    async def test_the_time_that_a_broker_may_be_away_goes_on_under_the_next_controller(self, join: Join) -> None:
        clock = ManualClock()
        one, two, three_, _ = [await join(number, settings=CALM, clock=clock) for number in (1, 2, 3, 4)]
        await one.create("a", (3, 2))
        await two.die()
        await eventually(lambda: one.image.brokers[two.id].away_since_ms is not None, "it is noted")
        clock.advance(CALM.heal_after_ms - 1)
        await one.die()
        await eventually(lambda: three_.image.controller_epoch == 2, "another is elected")
        await eventually(lambda: three_.image.brokers[one.id].away_since_ms is not None, "it has looked")
        assert not three_.partition("a").is_moving
        # The others may be about to come: the last tenth it waits itself.
        clock.advance(CALM.heal_after_ms // 10)
        await eventually(lambda: three_.partition("a").adding == ids(4), "a new replica is added")

    async def test_who_comes_back_in_time_keeps_its_replicas(self, join: Join) -> None:
        clock = ManualClock()
        one, two, three_ = await three(join, clock=clock)
        await one.create("a", (1, 2))
        await two.die()
        await found(one, "a", "it is buried", leader=1, in_sync=(1,))
        await join(2)
        await eventually(lambda: one.controller and not one.controller._away_since_ms, "it is back")
        clock.advance(CALM.heal_after_ms)
        await catch_up(one, "a")
        await found(three_, "a", "both are in sync", leader=1, in_sync=(1, 2))
        assert not three_.partition("a").is_moving


class TestBalance:
    async def test_a_new_broker_gets_its_share_a_few_at_a_time(self, join: Join) -> None:
        clock = ManualClock()
        settings = ClusterSettings(balance_after_ms=1_000, moves=2)
        one = await join(1, settings=settings, clock=clock)
        two = await join(2, settings=settings, clock=clock)
        await one.create("a", *((1, 2) for _ in range(6)))
        await join(3)
        await eventually(lambda: one.controller and one.controller._uneven_since_ms is not None, "it is noticed")
        assert not any(partition.is_moving for partition in one.image.topics["a"].partitions)
        clock.advance(1_000)

        async def settle() -> bool:
            await one.metadata.refresh()
            partitions = one.image.topics["a"].partitions
            moving = [partition for partition in partitions if partition.is_moving]
            assert len(moving) <= 2
            for partition in moving:
                leader = one if partition.leader == 1 else two
                await catch_up(leader, "a", partition.index)
            counts = [sum(broker in found.replicas for found in partitions) for broker in ids(1, 2, 3)]
            firsts = [sum(broker == found.replicas[0] for found in partitions) for broker in ids(1, 2, 3)]
            return not moving and counts == [4, 4, 4] and max(firsts) - min(firsts) < 2

        await eventually(settle, "all have the same")

    async def test_a_broker_that_is_drained_is_empty_in_the_end_and_gets_nothing_new(self, join: Join) -> None:
        one, two, three_ = await three(join)
        await one.create("a", (1, 2), (2, 3), (1, 3))
        drain = Increment((SettingOperation(DRAINING.name, OperationKind.SET, "true"),))
        assert await one.metadata.alter_broker_settings({two.id: drain}) == {two.id: None}

        async def is_empty() -> bool:
            await one.metadata.refresh()
            partitions = one.image.topics["a"].partitions
            for partition in partitions:
                if partition.is_moving:
                    await catch_up({1: one, 2: two, 3: three_}[partition.leader], "a", partition.index)
            return all(two.id not in partition.replicas for partition in partitions)

        await eventually(is_empty, "it is empty")
        await one.create_anywhere("b", 6, 2)
        assert all(sorted(partition.replicas) == [1, 3] for partition in one.image.topics["b"].partitions)
