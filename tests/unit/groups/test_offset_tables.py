"""What is written to a table of offsets, and what a person may change there."""

from __future__ import annotations

import pytest

from penstock.groups.offset_changes import OffsetChanges
from penstock.groups.offset_tables.comparison import differences, refusal
from penstock.ids import TopicPartition
from penstock.storage.sql.offset_table import NO_OFFSET, Bounds, OffsetRow, can_show

HELD = {("a", 0): 10, ("a", 1): 20}


def ours(group_id: str) -> bool:
    return group_id != "elsewhere"


def test_many_commits_of_a_partition_are_one_change() -> None:
    changes = OffsetChanges()
    for _ in range(1_000):
        changes.mark("a", TopicPartition("orders", 2))
    changes.mark("b", TopicPartition("orders", 2))
    changes.mark("a", TopicPartition("bills", 0))
    assert changes.take() == {"orders": {("a", 2), ("b", 2)}, "bills": {("a", 0)}}
    assert changes.take() == {}


def test_what_could_not_be_written_is_written_together_with_what_came_since() -> None:
    changes = OffsetChanges()
    changes.mark("a", TopicPartition("orders", 0))
    taken = changes.take()
    changes.mark("a", TopicPartition("orders", 1))
    changes.mark_again("orders", taken["orders"])
    assert changes.take() == {"orders": {("a", 0), ("a", 1)}}


def test_a_loaded_shard_is_told_once() -> None:
    changes = OffsetChanges()
    assert not changes.take_loaded()
    changes.mark_loaded()
    changes.mark_loaded()
    assert changes.take_loaded()
    assert not changes.take_loaded()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([OffsetRow("a", 0, 10, 10), OffsetRow("a", 1, 20, 20)], set()),
        ([OffsetRow("a", 0, 10, 10)], {("a", 1)}),
        ([OffsetRow("a", 0, 9, 9), OffsetRow("a", 1, 20, 20)], {("a", 0)}),
        # Of a group that is gone.
        ([OffsetRow("a", 0, 10, 10), OffsetRow("a", 1, 20, 20), OffsetRow("b", 0, 5, 5)], {("b", 0)}),
        # A person has changed one, and inserted one.
        ([OffsetRow("a", 0, 3, 10), OffsetRow("a", 1, 20, 20), OffsetRow("b", 0, 5, NO_OFFSET)], set()),
        ([OffsetRow("a", 0, 10, 10), OffsetRow("a", 1, 20, 20), OffsetRow("elsewhere", 0, 5, 5)], set()),
    ],
)
def test_a_table_is_compared_with_what_the_coordinator_has(
    rows: list[OffsetRow], expected: set[tuple[str, int]]
) -> None:
    assert differences(rows, HELD, ours) == expected


@pytest.mark.parametrize(("offset", "is_allowed"), [(9, False), (10, True), (15, True), (20, True), (21, False)])
def test_a_group_is_moved_only_inside_of_the_log(offset: int, is_allowed: bool) -> None:
    assert (refusal(OffsetRow("a", 0, offset, 12), Bounds(10, 20)) is None) == is_allowed


def test_a_partition_that_does_not_exist_is_named() -> None:
    assert refusal(OffsetRow("a", 7, 0, NO_OFFSET), None) == "there is no partition 7"


@pytest.mark.parametrize(("group_id", "expected"), [("a", True), ("a" * 256, False), ("a ", False), ("a\0", False)])
def test_only_names_that_every_database_tells_apart_are_shown(group_id: str, expected: bool) -> None:
    assert can_show(group_id) == expected
