"""The sparse indexes: nearest entry at or before, and files that are believed only if they are whole."""

from __future__ import annotations

import pytest

from penstock.storage.segmented.index import SparseIndex, read_positions, read_times


def sample() -> SparseIndex:
    index = SparseIndex()
    for number in range(1, 6):
        index.add(10 * number, 1000 * number)
        index.add_time(50 * number, 10 * number)
    return index


@pytest.mark.parametrize(("offset", "position"), [(0, 0), (9, 0), (10, 1000), (19, 1000), (50, 5000), (999, 5000)])
def test_an_offset_finds_the_entry_at_or_before_it(offset: int, position: int) -> None:
    assert sample().position_of(offset) == position


@pytest.mark.parametrize(("position", "found"), [(999, 0), (1000, 1000), (4999, 4000), (9999, 5000)])
def test_a_position_finds_the_last_start_not_above_it(position: int, found: int) -> None:
    assert sample().last_position_up_to(position) == found


@pytest.mark.parametrize(("time", "offset"), [(0, 0), (50, 0), (51, 10), (100, 10), (101, 20), (9999, 50)])
def test_a_time_finds_an_offset_below_which_all_is_earlier(time: int, offset: int) -> None:
    assert sample().offset_before_time(time) == offset


def test_a_smaller_or_equal_timestamp_adds_nothing() -> None:
    index = sample()
    index.add_time(250, 99)
    index.add_time(3, 99)
    assert index.times[-1] == 250
    assert index.time_offsets[-1] == 50


@pytest.mark.parametrize("index", [SparseIndex(), sample()], ids=["empty", "full"])
def test_files_give_back_what_was_saved(index: SparseIndex) -> None:
    positions, times = index.to_bytes(12345)
    again = SparseIndex.from_bytes(positions, times, 12345)
    assert again.to_bytes(12345) == (positions, times)
    assert read_positions(positions) == (12345, list(zip(index.offsets, index.positions, strict=True)))
    assert read_times(times) == (12345, list(zip(index.times, index.time_offsets, strict=True)))


def test_entries_are_as_large_as_the_format_says() -> None:
    positions, times = sample().to_bytes(0)
    assert (len(positions), len(times)) == (5 * 8 + 12, 5 * 12 + 12)
    assert positions[:8] == (10).to_bytes(4, "big") + (1000).to_bytes(4, "big")
    assert times[:12] == (50).to_bytes(8, "big") + (10).to_bytes(4, "big")


def test_any_cut_or_flipped_bit_is_noticed() -> None:
    positions, times = sample().to_bytes(777)
    for size in range(len(positions)):
        with pytest.raises(ValueError):
            SparseIndex.from_bytes(positions[:size], times, 777)
    for size in range(len(times)):
        with pytest.raises(ValueError):
            SparseIndex.from_bytes(positions, times[:size], 777)
    for at in range(len(times)):
        flipped = bytearray(times)
        flipped[at] ^= 4
        with pytest.raises(ValueError):
            SparseIndex.from_bytes(positions, bytes(flipped), 777)


def test_an_index_of_a_segment_of_another_size_is_not_used() -> None:
    with pytest.raises(ValueError, match="777"):
        SparseIndex.from_bytes(*sample().to_bytes(777), 778)


def test_entries_that_came_later_are_taken_over() -> None:
    index, other = SparseIndex(), sample()
    index.add(5, 500)
    index.extend(other, 3000)
    assert list(index.positions) == [500, 3000, 4000, 5000]
    assert list(index.times) == list(other.times)


@pytest.mark.parametrize(
    ("offset", "entry"), [(0, (0, 0)), (10, (0, 0)), (11, (10, 1000)), (20, (10, 1000)), (99, (50, 5000))]
)
def test_the_last_batch_that_begins_below_an_offset(offset: int, entry: tuple[int, int]) -> None:
    assert sample().entry_before(offset) == entry


def test_the_head_of_an_index_says_nothing_of_what_lies_behind() -> None:
    head = sample().head(3000, 30)
    assert (list(head.offsets), list(head.positions)) == ([10, 20], [1000, 2000])
    assert (list(head.times), list(head.time_offsets)) == ([50, 100], [10, 20])
    whole = sample().head(3001, 31)
    assert list(whole.offsets) == list(whole.time_offsets) == [10, 20, 30]
