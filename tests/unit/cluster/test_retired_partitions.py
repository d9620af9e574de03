"""Which partitions may be retired, where they are led, and when they go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.cluster.decisions.retired_partitions import (
    Remains,
    apart,
    check_change,
    check_growth,
    grown,
    is_writable,
    led_partition,
    may_go,
    seen_of_gone,
    successors,
    together,
    without_last,
)
from penstock.cluster.metadata import PartitionImage, TopicImage
from penstock.config.retired import RETIRED_SETTING
from penstock.errors import ApiError
from penstock.ids import BrokerId, new_topic_id

READ = Remains(start_offset=9, end_offset=9, has_open_transaction=False, unread_by=())


def topic(count: int, pairs: str = "", *, is_internal: bool = False) -> TopicImage:
    partitions = tuple(
        PartitionImage(index, BrokerId(index % 3), 7, (BrokerId(index % 3),), (BrokerId(index % 3),))
        for index in range(count)
    )
    overrides = {RETIRED_SETTING: pairs} if pairs else {}
    return TopicImage("orders", new_topic_id(), partitions, overrides, is_internal)


def test_an_internal_topic_keeps_its_partitions() -> None:
    with pytest.raises(ApiError, match="written by brokers alone"):
        check_change(topic(3, is_internal=True), {RETIRED_SETTING: "2:0"})


def test_the_pairs_of_what_is_gone_may_change_and_those_of_what_is_there_may_not() -> None:
    before = topic(3, "2:0,3:1")
    check_change(before, {RETIRED_SETTING: "2:0,3:0"})
    check_change(before, {RETIRED_SETTING: "2:0"})
    with pytest.raises(ApiError, match="cannot be changed any more"):
        check_change(before, {RETIRED_SETTING: "2:1,3:1"})
    with pytest.raises(ApiError, match="no partition 4"):
        check_change(before, {RETIRED_SETTING: "2:0,3:1,4:0"})


def test_a_topic_grows_only_when_its_retired_partitions_are_gone() -> None:
    with pytest.raises(ApiError, match="can grow when they are gone"):
        check_growth(topic(3, "2:0"))
    check_growth(topic(2, "2:0"))


def test_what_is_there_again_is_not_retired() -> None:
    assert successors(grown(topic(3, "2:0,3:1"))) == {3: 1}
    assert grown(topic(4, "2:0,3:1")).overrides == {}


@pytest.mark.parametrize(
    "remains",
    [
        replace(READ, start_offset=8),
        replace(READ, has_open_transaction=True),
        replace(READ, unread_by={"group"}),
    ],
)
def test_a_retired_partition_stays_while_something_is_left_of_it(remains: Remains) -> None:
    assert may_go(topic(3, "2:0"), 2, READ)
    assert not may_go(topic(3, "2:0"), 2, remains)


def test_only_the_last_partition_goes_and_only_if_it_is_retired() -> None:
    assert not may_go(topic(4, "2:0,3:1"), 2, READ)
    assert not may_go(topic(3), 2, READ)
    after = without_last(topic(4, "2:0,3:1"))
    assert (len(after.partitions), successors(after)) == (3, {2: 0, 3: 1})
    assert may_go(after, 2, READ)


def test_a_retired_partition_is_led_by_whoever_leads_its_successor() -> None:
    one, two, three = map(BrokerId, (1, 2, 3))
    partitions = (
        PartitionImage(0, two, 4, (one, two, three), (two, three)),
        PartitionImage(1, one, 6, (two, three, one), (one, two, three)),
    )
    before = TopicImage("orders", new_topic_id(), partitions, {RETIRED_SETTING: "1:0"})
    after = together(before, {two, three}).partitions[1]
    assert (after.leader, after.leader_epoch, after.replicas) == (two, 7, (one, two, three))
    assert together(before, {three}).partitions[1].leader == one
    lagging = replace(before, partitions=(partitions[0], replace(partitions[1], in_sync=(one,))))
    assert together(lagging, {two, three}).partitions[1].leader == one


def test_a_retired_partition_that_is_not_where_its_successor_is_has_to_go_there() -> None:
    one, two, three = map(BrokerId, (1, 2, 3))
    partitions = (PartitionImage(0, one, 0, (one, two), (one,)), PartitionImage(1, one, 0, (one, three), (one,)))
    before = TopicImage("orders", new_topic_id(), partitions, {RETIRED_SETTING: "1:0"})
    assert apart(before) == {1: (one, two)}
    assert apart(replace(before, overrides={})) == {}


def test_what_is_gone_is_written_to_and_led_where_its_successor_is() -> None:
    after = topic(2, "2:1,3:0")
    assert [is_writable(after, index) for index in range(-1, 5)] == [False, True, True, True, True, False]
    assert [led_partition(after, index) for index in (1, 2, 4)] == [after.partitions[1], after.partitions[1], None]
    assert [(seen.index, seen.leader, seen.leader_epoch) for seen in seen_of_gone(after)] == [(2, 1, -1), (3, 0, -1)]
