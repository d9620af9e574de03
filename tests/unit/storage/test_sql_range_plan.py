"""Where the next range of a table ends, and when to add it."""

from __future__ import annotations

import pytest

from penstock.storage.sql.table_ranges import RangePlan

MIB = 1 << 20
RANGE = 256 * MIB


def plan(*, size: int, start: int = 0, end: int) -> RangePlan:
    return RangePlan(RANGE, size, start, end)


def test_a_small_log_needs_no_range() -> None:
    added, look_at = plan(size=MIB - 1, end=1000).next_end(None, None)
    assert added is None and look_at > 1 << 60


def test_the_first_range_holds_what_there_is_and_a_range_more() -> None:
    added, look_at = plan(size=2 * MIB, end=2048).next_end(None, None)
    assert added == 2049 + RANGE // 1024
    assert look_at == added // 2


@pytest.mark.parametrize("end", [0, 1000, 130_999])
def test_nothing_is_added_before_the_open_range_is_half_full(end: int) -> None:
    # The open range has the ids from 1,001 to 261,000.
    added, look_at = plan(size=end * 1024, end=end).next_end(261_001, 1_001)
    assert (added, look_at) == (None, 131_001)


def test_the_next_range_follows_the_open_one() -> None:
    added, look_at = plan(size=131_001 * 1024, end=131_001).next_end(261_001, 1_001)
    assert added == 261_001 + RANGE // 1024
    assert look_at == (261_001 + added) // 2


def test_a_little_in_the_last_range_is_moved() -> None:
    added, _ = plan(size=10_000 * 1024, end=10_000).next_end(9_001, 1)
    assert added == 10_001 + RANGE // 1024


def test_much_in_the_last_range_stays_there() -> None:
    added, look_at = plan(size=100_000 * 1024, end=100_000).next_end(9_001, 1)
    assert added is None and 100_000 < look_at < 100_000 + RANGE // 1024


def test_what_was_trimmed_is_not_in_the_last_range() -> None:
    added, _ = plan(size=1_000 * 1024, start=99_000, end=100_000).next_end(9_001, 1)
    assert added == 100_001 + RANGE // 1024


@pytest.mark.parametrize("size", [RANGE * 10, RANGE * 1000, RANGE * 100_000])
def test_a_large_log_has_few_ranges(size: int) -> None:
    assert len(list(plan(size=size, end=size // 1024).ends())) <= 65


def test_ranges_of_a_copy_hold_all_of_it() -> None:
    ends = list(plan(size=3 * RANGE, start=500, end=500 + 3 * RANGE // 1024).ends())
    assert ends[-1] > 500 + 3 * RANGE // 1024
    assert ends == sorted(set(ends)) and len(ends) == 3


@pytest.mark.parametrize(("size", "end"), [(0, 0), (0, 10), (1, 10), (RANGE, 1), (RANGE * 4, 2)])
def test_every_log_has_a_plan(size: int, end: int) -> None:
    made = plan(size=size, end=end)
    for last_end, before in ((None, None), (5, None), (5, 3)):
        added, look_at = made.next_end(last_end, before)
        assert added is None or added > max(end, last_end or 0)
        assert look_at > end or added is not None
    assert all(each > 0 for each in made.ends())
