"""What the simulation, or thinking about it, has found in the machines, as small facts."""

from __future__ import annotations

from penstock.errors import Code
from penstock.ids import BrokerId
from penstock.replication.divergence import BeginAt, CutBack, Divergence, Position, diverges, is_out_of_range, next_step
from penstock.replication.leadership import LagRules, Leadership
from penstock.storage.epochs import EpochHistory, EpochStart

ME, OTHER, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
EVERYBODY = (ME, OTHER, THIRD)
NEVER = float("-inf")


def leadership(in_sync: tuple[BrokerId, ...], *, max_messages: int = 0) -> Leadership:
    rules = LagRules(max_ms=1000, max_messages=max_messages)
    return Leadership(ME, 7, EVERYBODY, in_sync, EVERYBODY, start_offset=10, high_watermark=10, rules=rules, now_ms=0.0)


def test_a_follower_that_is_behind_does_not_join_again_as_soon_as_it_has_left() -> None:
    leader = leadership((ME, OTHER), max_messages=5)
    leader.fetched(OTHER, 10, 10, 1.0, NEVER)
    assert leader.proposal(20, 2.0) == frozenset({ME})
    leader.settled((ME,), EVERYBODY, EVERYBODY, 3.0)
    assert leader.proposal(20, 4.0) is None
    leader.fetched(OTHER, 20, 20, 5.0, NEVER)
    assert leader.proposal(20, 6.0) == frozenset({ME, OTHER})


def test_the_watermark_waits_for_a_follower_that_keeps_up_so_that_it_can_join() -> None:
    leader = leadership((ME,))
    leader.fetched(OTHER, 10, 12, 1.0, NEVER)
    assert leader.raise_watermark(12, 1.0)
    leader.fetched(OTHER, 12, 14, 2.0, NEVER)
    assert not leader.raise_watermark(14, 2.0)
    assert leader.proposal(14, 2.0) == frozenset({ME, OTHER})


def test_the_watermark_does_not_wait_for_a_follower_that_is_far_behind() -> None:
    leader = leadership((ME,))
    leader.fetched(OTHER, 3, 12, 1.0, NEVER)
    assert leader.raise_watermark(12, 1.0)
    assert leader.high_watermark == 12
    assert leader.proposal(12, 1.0) is None


def test_the_watermark_does_not_wait_for_a_follower_that_is_dead_and_not_in_sync() -> None:
    """It was heard from a moment ago, and keeps up by that; nobody will ever hear from it again."""
    leader = leadership((ME,))
    leader.fetched(OTHER, 12, 12, 1.0, NEVER)
    assert not leader.raise_watermark(14, 2.0) or leader.high_watermark == 12
    leader.settled((ME,), EVERYBODY, (ME, THIRD), 3.0)
    assert leader.raise_watermark(14, 3.0)
    assert leader.high_watermark == 14


def test_a_leader_that_cannot_write_leaves_if_anybody_else_is_in_sync_and_alive() -> None:
    leader = leadership((ME, OTHER, THIRD))
    leader.settled((ME, OTHER, THIRD), EVERYBODY, (ME, THIRD), 1.0)
    assert leader.proposal(10, 2.0, can_write=False) == frozenset({THIRD})
    leader.settled((ME, OTHER), EVERYBODY, (ME, THIRD), 3.0)
    assert leader.proposal(10, 4.0, can_write=False) is None


def test_a_proposed_member_counts_until_it_is_known_what_became_of_the_proposal() -> None:
    """A newer image may come while the commit is decided again on that one, and follows after it."""
    leader = leadership((ME,))
    leader.fetched(OTHER, 10, 10, 1.0, NEVER)
    leader.propose(frozenset({ME, OTHER}))
    leader.settled((ME,), EVERYBODY, (ME, THIRD), 2.0)
    assert not leader.raise_watermark(14, 2.0)
    leader.settled((ME, OTHER), EVERYBODY, EVERYBODY, 3.0)
    leader.decided()
    assert not leader.raise_watermark(14, 3.0)


def test_a_fetch_that_was_long_on_its_way_does_not_say_that_its_sender_still_follows() -> None:
    leader = leadership((ME, OTHER))
    leader.fetched(OTHER, 10, 10, 5000.0, 100.0)
    assert not leader.leads(5000.0, lease_until_ms=4000.0, followed_within_ms=500.0)
    leader.fetched(OTHER, 10, 10, 5010.0, 5000.0)
    assert leader.leads(5010.0, lease_until_ms=4000.0, followed_within_ms=500.0)


def test_a_leader_whose_lease_is_over_needs_every_member_that_may_be_in_sync() -> None:
    leader = leadership((ME,))
    assert leader.leads(9000.0, lease_until_ms=1.0, followed_within_ms=500.0)
    leader.propose(frozenset({ME, OTHER}))
    assert not leader.leads(9000.0, lease_until_ms=1.0, followed_within_ms=500.0)


def test_a_leader_knows_the_watermark_when_all_in_sync_have_what_there_was_at_the_beginning() -> None:
    rules = LagRules(max_ms=1000, max_messages=0)
    in_sync = (ME, OTHER)
    leader = Leadership(
        ME, 7, EVERYBODY, in_sync, EVERYBODY, start_offset=10, high_watermark=4, rules=rules, now_ms=0.0
    )
    assert not leader.knows_watermark
    leader.fetched(OTHER, 10, 10, 1.0, NEVER)
    assert leader.raise_watermark(10, 1.0)
    assert leader.knows_watermark


def test_a_follower_without_records_that_has_come_further_than_its_leader_goes_back_to_its_end() -> None:
    asked = Position(50, -1)
    divergence = diverges(asked, EpochHistory([EpochStart(3, 20)]), 30)
    assert divergence == Divergence(-1, 30)
    assert next_step(Code.NONE, divergence, 20, asked, EpochHistory()) == CutBack(30)
    assert diverges(Position(30, -1), EpochHistory([EpochStart(3, 20)]), 30) is None


def test_a_follower_whose_records_all_lie_before_the_leaders_log_begins_anew() -> None:
    """Its last record may never have been acknowledged, at an offset whose record is past retention: elected, it would
    tell the producer that tries again that the record is safe.
    """
    asked = Position(21, 4)
    assert is_out_of_range(asked, 21, -1)
    assert next_step(Code.OFFSET_OUT_OF_RANGE, None, 21, asked, EpochHistory([EpochStart(4, 0)])) == BeginAt(21)
    assert not is_out_of_range(Position(21, -1), 21, -1)
    assert not is_out_of_range(Position(22, 4), 21, -1)
    assert is_out_of_range(Position(20, 4), 21, 20)


def test_a_follower_that_was_found_to_agree_keeps_its_log_when_the_leader_trims_all_of_it() -> None:
    assert not is_out_of_range(Position(21, 4), 21, 21)
