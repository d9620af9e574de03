"""Who takes the place of a partition that is retired."""

from __future__ import annotations

import pytest

from penstock.admin.retirement import choose_successors
from penstock.admin.topics import PartitionDescription
from penstock.errors import ConfigError


def led_by(*leaders: int) -> list[PartitionDescription]:
    """Partitions with these leaders, each on two brokers."""
    return [PartitionDescription(index, leader, (leader, 9), (leader, 9), ()) for index, leader in enumerate(leaders)]


def test_a_successor_is_led_where_the_retired_partition_is() -> None:
    assert choose_successors(led_by(1, 2, 3, 3, 2), {}, [3, 4]) == {3: 2, 4: 1}


def test_among_equals_the_one_that_has_taken_over_least_is_chosen() -> None:
    assert choose_successors(led_by(1, 1, 1, 1, 1), {}, [2, 3, 4]) == {2: 0, 3: 1, 4: 0}
    assert choose_successors(led_by(1, 1, 1, 1), {3: 0}, [2]) == {2: 1, 3: 0}


def test_without_such_a_one_any_other_is_chosen() -> None:
    assert choose_successors(led_by(1, 2, 3), {}, [2]) == {2: 0}


def test_retiring_what_is_retired_changes_nothing() -> None:
    assert choose_successors(led_by(1, 1, 1), {2: 1}, [2]) == {2: 1}


def test_who_took_the_place_of_one_that_is_gone_hands_it_on() -> None:
    assert choose_successors(led_by(1, 1), {2: 1, 3: 0}, [1]) == {1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("before", "wanted", "reason"),
    [
        ({}, [1], "only the last"),
        ({}, [0, 1, 2], "has to remain"),
        ({}, [3], "no partition 3"),
        ({2: 1}, [1], "is the successor of 2"),
    ],
)
def test_what_cannot_be_retired_is_refused(before: dict[int, int], wanted: list[int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        choose_successors(led_by(1, 1, 1), before, wanted)
