"""What may be committed of a partition."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.receive.settling import AHEAD, Ledger


def test_nothing_is_committed_before_anything_is_known() -> None:
    assert Ledger().news() is None


def test_what_is_handed_out_holds_the_commit_back() -> None:
    ledger = Ledger()
    for offset in (5, 6, 7):
        ledger.hand_out(offset)
    ledger.settle(6)
    ledger.settle(7)
    assert ledger.committable == 5
    ledger.settle(5)
    assert ledger.committable == 8


def test_a_gap_does_not_hold_the_commit_back() -> None:
    ledger = Ledger()
    ledger.hand_out(3)
    ledger.hand_out(90)
    ledger.settle(3)
    assert ledger.committable == 90
    ledger.settle(90)
    assert ledger.committable == 91


def test_what_the_reader_has_passed_over_is_committed_once_nothing_is_in_hand() -> None:
    ledger = Ledger()
    ledger.hand_out(3)
    ledger.pass_over(50)
    assert ledger.committable == 3
    ledger.settle(3)
    assert ledger.committable == 50


def test_the_same_position_is_told_once() -> None:
    ledger = Ledger()
    ledger.hand_out(0)
    assert ledger.news() == 0
    assert ledger.news() is None
    ledger.settle(0)
    assert ledger.news() == 1
    assert ledger.news() is None


def test_a_reader_that_has_gone_back_does_not_fit() -> None:
    ledger = Ledger()
    ledger.hand_out(10)
    assert not ledger.fits(10)
    assert ledger.fits(11)


def test_a_partition_that_runs_far_ahead_of_one_message_says_so() -> None:
    ledger = Ledger()
    for offset in range(AHEAD + 1):
        ledger.hand_out(offset)
    for offset in range(1, AHEAD + 1):
        assert not ledger.is_far_ahead
        ledger.settle(offset)
    assert ledger.is_far_ahead
    ledger.settle(0)
    assert not ledger.is_far_ahead


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_everything_before_the_commit_is_settled_and_nothing_more_could_be_committed(
    gaps: list[int], chance: random.Random
) -> None:
    offsets, offset = [], 0
    for gap in gaps:
        offset += gap
        offsets.append(offset)
        offset += 1
    ledger, handed_out, settled = Ledger(), [], set()
    left = list(offsets)
    while left or len(settled) < len(offsets):
        waiting = [each for each in handed_out if each not in settled]
        if left and (not waiting or chance.random() < 0.5):
            handed_out.append(left.pop(0))
            ledger.hand_out(handed_out[-1])
        else:
            done = chance.choice(waiting)
            settled.add(done)
            ledger.settle(done)
        position = ledger.committable
        assert position is not None
        assert all(each in settled for each in handed_out if each < position)
        assert position not in settled
        assert ledger.in_hand == len(handed_out) - len(settled)
    assert ledger.committable == offsets[-1] + 1
