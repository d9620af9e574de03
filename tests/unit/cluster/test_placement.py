"""Where replicas go: racks, balance, and what is kept while they are moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.decisions import placement
from penstock.cluster.decisions.placement import Loads, Move
from penstock.cluster.decisions.reassignment import finish, reassign
from penstock.cluster.metadata import BrokerInfo, MetadataImage, PartitionImage, TopicImage
from penstock.cluster.metadata_draft import MetadataDraft
from penstock.ids import BrokerId


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def brokers(*racks: str | None) -> list[BrokerInfo]:
    return [BrokerInfo(BrokerId(number), "host", 9092, rack) for number, rack in enumerate(racks, 1)]


def topic(*replicas: tuple[BrokerId, ...], name: str = "t") -> TopicImage:
    partitions = tuple(PartitionImage(index, each[0], 0, each, each) for index, each in enumerate(replicas))
    return TopicImage(name, UUID(int=7), partitions)


def next_move(topics: Mapping[str, TopicImage], loads: Loads, brokers: Collection[BrokerId]) -> Move | None:
    found = (step(topics, loads, brokers) for step in placement.STEPS)
    return next((move for move in found if move is not None), None)


racks = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7)


class TestPlace:
    @given(racks, st.data())
    def test_replicas_are_on_different_brokers_and_in_as_many_racks_as_there_are(
        self, racks: list[str | None], data: st.DataObject
    ) -> None:
        infos = brokers(*racks)
        factor = data.draw(st.integers(1, len(infos)))
        everybody = [info.id for info in infos]
        loads = Loads(infos, ())
        for replicas in placement.place(loads, everybody, 20, factor):
            assert len(set(replicas)) == factor
            assert loads.racks_of(replicas) == min(factor, loads.racks_of(everybody))

    @given(st.integers(1, 7), st.integers(1, 40), st.data())
    def test_without_racks_everybody_has_the_same(self, count: int, partitions: int, data: st.DataObject) -> None:
        factor = data.draw(st.integers(1, count))
        infos = brokers(*[None] * count)
        placed = placement.place(Loads(infos, ()), [info.id for info in infos], partitions, factor)
        replicas = Counter(broker for each in placed for broker in each)
        leaders = Counter(each[0] for each in placed)
        for counted, apart in ((replicas, 1), (leaders, 2)):
            numbers = [counted[info.id] for info in infos]
            assert max(numbers) - min(numbers) <= apart

    def test_brokers_with_less_come_first_also_across_topics(self) -> None:
        infos = brokers(None, None, None)
        loads = Loads(infos, [topic(ids(1), ids(1), ids(2))])
        placed = placement.place(loads, ids(1, 2, 3), 3, 1)
        assert placed[0] == ids(3)
        assert sorted(placed[1:]) == [ids(2), ids(3)]


class TestWithout:
    def test_another_takes_the_place_of_one_that_is_gone(self) -> None:
        infos = brokers("a", "b", "a", "b")
        moving = topic(ids(1, 2)).partitions[0]
        assert placement.without(moving, ids(1), Loads(infos, ()), ids(2, 3, 4)) == ids(3, 2)
        assert placement.without(moving, ids(2), Loads(infos, ()), ids(1, 3, 4)) == ids(1, 4)

    def test_who_is_not_affected_stays_and_what_cannot_be_replaced_too(self) -> None:
        partition = topic(ids(1, 2, 3)).partitions[0]
        loads = Loads(brokers(None, None, None, None), ())
        assert placement.without(partition, ids(4), loads, ids(1, 2, 3)) is None
        assert placement.without(partition, ids(3), loads, ids(1, 2)) is None
        assert placement.without(partition, ids(1, 2), loads, ids(3, 4)) == ids(4, 2, 3)


class TestBalance:
    @given(racks, st.data())
    def test_moves_end_and_leave_nobody_with_much_more_and_racks_no_worse(
        self, racks: list[str | None], data: st.DataObject
    ) -> None:
        infos = brokers(*racks)
        everybody = [info.id for info in infos]
        factor = data.draw(st.integers(1, min(3, len(infos))))
        sets = st.permutations(everybody).map(lambda order: tuple(order[:factor]))
        found = topic(*data.draw(st.lists(sets, min_size=1, max_size=12)))
        draft = MetadataDraft(MetadataImage(1, "c", {info.id: info for info in infos}, BrokerId(1), {"t": found}, {}))
        before = [draft.loads.racks_of(partition.replicas) for partition in found.partitions]
        for _ in range(200):
            move = next_move(draft.topics, draft.loads, everybody)
            if move is None:
                break
            begun = reassign(draft.topics["t"].partitions[move.partition], move.target, everybody)
            caught_up = PartitionImage(
                begun.index, begun.leader, 0, begun.replicas, begun.replicas, begun.adding, begun.removing
            )
            draft.put_partition("t", finish(caught_up, everybody))
        else:
            raise AssertionError("it goes on for ever")
        after = [draft.loads.racks_of(partition.replicas) for partition in draft.topics["t"].partitions]
        assert all(was <= now for was, now in zip(before, after, strict=True))
        assert set(after) == {min(factor, draft.loads.racks_of(everybody))}
        fresh = Loads(infos, draft.topics.values())
        assert all(
            (draft.loads.replicas_of(broker), draft.loads.leaders_of(broker))
            == (fresh.replicas_of(broker), fresh.leaders_of(broker))
            for broker in everybody
        )
        if not any(racks):
            numbers = [fresh.replicas_of(broker) for broker in everybody]
            assert max(numbers) - min(numbers) <= 1

    def test_a_partition_that_moves_counts_as_what_it_will_be(self) -> None:
        infos = brokers(None, None)
        moving = PartitionImage(0, BrokerId(1), 0, ids(2, 1), ids(1), adding=ids(2), removing=ids(1))
        loads = Loads(infos, [TopicImage("t", UUID(int=7), (moving,))])
        assert (loads.replicas_of(BrokerId(1)), loads.replicas_of(BrokerId(2))) == (0, 1)

    def test_leaders_are_evened_out_without_moving_anything(self) -> None:
        infos = brokers(None, None)
        found = {"t": topic(ids(1, 2), ids(1, 2))}
        move = next_move(found, Loads(infos, found.values()), ids(1, 2))
        assert move == ("t", 0, ids(2, 1))
