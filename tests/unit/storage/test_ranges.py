"""A set of byte ranges: merged, bounded, and never claiming more than was added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.segmented.reading.byte_ranges import Ranges

BOUNDS = st.tuples(st.integers(0, 60), st.integers(0, 60))


@given(st.lists(st.tuples(st.booleans(), BOUNDS), max_size=30))
def test_ranges_cover_exactly_what_was_added_and_not_removed(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    ranges, expected = Ranges(), set[int]()
    for adds, (start, end) in steps:
        if adds:
            ranges.add(start, end)
            expected |= set(range(start, end))
        else:
            ranges.remove(start, end)
            expected -= set(range(start, end))
    assert {at for low, high in ranges for at in range(low, high)} == expected
    for start in range(0, 60, 7):
        for end in range(start + 1, 60, 5):
            assert ranges.covers(start, end) == (set(range(start, end)) <= expected)


def test_touching_ranges_become_one() -> None:
    ranges = Ranges()
    ranges.add(0, 5)
    ranges.add(5, 9)
    assert list(ranges) == [(0, 9)]


def test_the_number_of_ranges_is_bounded_and_the_smallest_goes() -> None:
    ranges = Ranges()
    for number in range(100):
        ranges.add(number * 1000, number * 1000 + 10 + number)
    kept = list(ranges)
    assert len(kept) <= 32
    assert kept[-1] == (99_000, 99_109)
    assert not ranges.covers(0, 5)
