"""Moving a partition: what is added, what goes, and who leads meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.decisions.reassignment import cancel, finish, reassign, settled_replicas
from penstock.cluster.metadata import NO_LEADER, PartitionImage
from penstock.errors import ApiError, Code
from penstock.ids import BrokerId


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


ALIVE = ids(1, 2, 3, 4, 5)
SETTLED = PartitionImage(0, BrokerId(1), 5, ids(1, 2, 3), ids(1, 2, 3))


def test_new_replicas_are_added_before_old_ones_go() -> None:
    moving = reassign(SETTLED, ids(4, 2, 3), ALIVE)
    assert moving == PartitionImage(0, BrokerId(1), 6, ids(4, 2, 3, 1), ids(2, 3, 1), ids(4), ids(1))
    assert finish(moving, ALIVE) is moving
    done = finish(replace(moving, in_sync=ids(4, 2, 3, 1)), ALIVE)
    assert done == PartitionImage(0, BrokerId(4), 7, ids(4, 2, 3), ids(4, 2, 3))


def test_a_leader_that_stays_goes_on_leading() -> None:
    moving = reassign(SETTLED, ids(1, 4), ALIVE)
    done = finish(replace(moving, in_sync=ids(1, 4, 2, 3)), ALIVE)
    assert (done.leader, done.replicas, done.in_sync) == (1, ids(1, 4), ids(1, 4))


def test_fewer_replicas_are_had_at_once_if_one_of_them_is_in_sync() -> None:
    assert finish(reassign(SETTLED, ids(2), ALIVE), ALIVE).replicas == ids(2)
    behind = replace(SETTLED, in_sync=ids(1))
    waiting = reassign(behind, ids(2), ALIVE)
    assert finish(waiting, ALIVE) is waiting


def test_another_order_is_no_move() -> None:
    moved = reassign(SETTLED, ids(3, 1, 2), ALIVE)
    assert not moved.is_moving
    assert (moved.replicas, moved.leader, moved.leader_epoch) == (ids(3, 1, 2), 1, 6)
    assert reassign(SETTLED, SETTLED.replicas, ALIVE) is SETTLED


def test_a_move_that_is_replaced_leaves_nothing_behind() -> None:
    moving = replace(reassign(SETTLED, ids(4, 2, 3), ALIVE), in_sync=ids(4, 2, 3, 1), leader=BrokerId(4))
    other = reassign(moving, ids(5, 2, 3), ids(2, 3, 4, 5))
    assert (other.replicas, other.adding, other.removing) == (ids(5, 2, 3, 1), ids(5), ids(1))
    assert (other.leader, other.in_sync) == (2, ids(2, 3, 1))


def test_a_move_that_is_given_up_brings_back_what_was() -> None:
    moving = reassign(SETTLED, ids(4, 5), ALIVE)
    back = cancel(moving, ALIVE)
    assert sorted(back.replicas) == [1, 2, 3] and not back.is_moving
    with pytest.raises(ApiError) as refused:
        cancel(SETTLED, ALIVE)
    assert refused.value.code is Code.NO_REASSIGNMENT_IN_PROGRESS


def test_what_was_acknowledged_is_not_given_up_with_a_move() -> None:
    moving = replace(reassign(SETTLED, ids(4), ALIVE), in_sync=ids(4), leader=BrokerId(4))
    with pytest.raises(ApiError):
        cancel(moving, ALIVE)


@given(
    st.lists(
        st.permutations(range(1, 6)).flatmap(lambda order: st.integers(1, 3).map(lambda n: order[:n])), max_size=6
    ),
    st.data(),
)
def test_however_a_partition_is_moved_its_leader_is_in_sync_and_its_in_sync_set_is_not_empty(
    targets: list[list[int]], data: st.DataObject
) -> None:
    partition = SETTLED
    for target in targets:
        alive = ids(*data.draw(st.sets(st.integers(1, 5), min_size=1)))
        try:
            partition = reassign(partition, ids(*target), alive)
        except ApiError:
            continue
        assert sorted({*settled_replicas(partition), *partition.adding}) == sorted(partition.replicas)
        if partition.leader != NO_LEADER:
            grown = data.draw(st.sets(st.sampled_from(partition.replicas)))
            in_sync = tuple(each for each in partition.replicas if each in partition.in_sync or each in grown)
            partition = finish(replace(partition, in_sync=in_sync), alive)
        assert partition.in_sync
        assert set(partition.in_sync) <= set(partition.replicas)
        assert partition.leader == NO_LEADER or partition.leader in partition.in_sync
