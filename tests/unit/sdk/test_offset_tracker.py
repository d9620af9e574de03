"""What may be committed of a partition."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.receive.in_flight import MAX_SETTLED_AHEAD, OffsetTracker


def test_nothing_is_committed_before_anything_is_known() -> None:
    assert OffsetTracker().newly_committable() is None


def test_an_unsettled_message_holds_the_commit_back() -> None:
    tracker = OffsetTracker()
    for offset in (5, 6, 7):
        tracker.add(offset)
    tracker.settle(6)
    tracker.settle(7)
    assert tracker.committable == 5
    tracker.settle(5)
    assert tracker.committable == 8


def test_a_gap_does_not_hold_the_commit_back() -> None:
    tracker = OffsetTracker()
    tracker.add(3)
    tracker.add(90)
    tracker.settle(3)
    assert tracker.committable == 90
    tracker.settle(90)
    assert tracker.committable == 91


def test_skipped_offsets_are_committed_once_nothing_is_in_flight() -> None:
    tracker = OffsetTracker()
    tracker.add(3)
    tracker.skip_to(50)
    assert tracker.committable == 3
    tracker.settle(3)
    assert tracker.committable == 50


def test_the_same_position_is_told_once() -> None:
    tracker = OffsetTracker()
    tracker.add(0)
    assert tracker.newly_committable() == 0
    assert tracker.newly_committable() is None
    tracker.settle(0)
    assert tracker.newly_committable() == 1
    assert tracker.newly_committable() is None


def test_a_reader_that_has_gone_back_does_not_fit() -> None:
    tracker = OffsetTracker()
    tracker.add(10)
    assert not tracker.accepts(10)
    assert tracker.accepts(11)


def test_a_partition_that_runs_far_ahead_of_one_message_says_so() -> None:
    tracker = OffsetTracker()
    for offset in range(MAX_SETTLED_AHEAD + 1):
        tracker.add(offset)
    for offset in range(1, MAX_SETTLED_AHEAD + 1):
        assert not tracker.is_far_ahead
        tracker.settle(offset)
    assert tracker.is_far_ahead
    tracker.settle(0)
    assert not tracker.is_far_ahead


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_everything_before_the_commit_is_settled_and_nothing_more_could_be_committed(
    gaps: list[int], chance: random.Random
) -> None:
    offsets, offset = [], 0
    for gap in gaps:
        offset += gap
        offsets.append(offset)
        offset += 1
    tracker = OffsetTracker()
    delivered: list[int] = []
    settled: set[int] = set()
    left = list(offsets)
    while left or len(settled) < len(offsets):
        waiting = [each for each in delivered if each not in settled]
        if left and (not waiting or chance.random() < 0.5):
            delivered.append(left.pop(0))
            tracker.add(delivered[-1])
        else:
            done = chance.choice(waiting)
            settled.add(done)
            tracker.settle(done)
        position = tracker.committable
        assert position is not None
        assert all(each in settled for each in delivered if each < position)
        assert position not in settled
        assert tracker.in_flight == len(delivered) - len(settled)
    assert tracker.committable == offsets[-1] + 1
