"""When a leader may answer without asking its followers, and how long it keeps one that it has not heard from."""

from __future__ import annotations

from penstock.ids import BrokerId
from penstock.replication.leadership import LagRules, Leadership

ME, OTHER = BrokerId(1), BrokerId(2)
BOTH = frozenset({ME, OTHER})
LEASE_UNTIL_MS = 5_000.0


def leading(*in_sync: BrokerId, rules: LagRules | None = None) -> Leadership:
    rules = rules or LagRules(max_ms=1_000, max_messages=0)
    return Leadership(ME, 3, BOTH, in_sync, BOTH, start_offset=10, high_watermark=10, rules=rules, now_ms=0.0)


def test_a_lease_is_certain_until_its_end_and_a_follower_that_was_just_heard_is_not() -> None:
    leader = leading(ME, OTHER)
    assert leader.is_certain(4_999.0, LEASE_UNTIL_MS)
    leader.fetched(OTHER, 10, 10, 5_000.0, 5_000.0)
    assert leader.leads(5_001.0, LEASE_UNTIL_MS, 500.0)
    assert not leader.is_certain(5_001.0, LEASE_UNTIL_MS), "it may have become leader since"


def test_nobody_else_can_lead_where_nobody_else_is_in_sync() -> None:
    assert leading(ME).is_certain(9_000.0, LEASE_UNTIL_MS)
    joining = leading(ME)
    joining.propose(BOTH)
    assert not joining.is_certain(9_000.0, LEASE_UNTIL_MS), "the commit may have taken place"


def test_in_shared_storage_another_can_lead_once_the_lease_is_over_although_nobody_else_is_in_sync() -> None:
    alone = frozenset({ME})
    rules = LagRules(max_ms=1_000, max_messages=0)
    leader = Leadership(
        ME, 3, alone, alone, BOTH, start_offset=10, high_watermark=10, rules=rules, now_ms=0.0, is_shared=True
    )
    assert leader.leads(4_999.0, LEASE_UNTIL_MS, 500.0) and leader.is_certain(4_999.0, LEASE_UNTIL_MS)
    assert not leader.leads(5_000.0, LEASE_UNTIL_MS, 500.0)
    assert not leader.is_certain(5_000.0, LEASE_UNTIL_MS)


def test_a_lease_says_nothing_once_the_leader_has_proposed_that_another_leads() -> None:
    leader = leading(ME, OTHER)
    leader.propose(frozenset({OTHER}))
    assert not leader.is_certain(0.0, LEASE_UNTIL_MS)
    leader.decided()
    assert leader.is_certain(0.0, LEASE_UNTIL_MS)


def test_a_lease_says_nothing_while_a_move_takes_the_partition_away() -> None:
    leader = leading(ME, OTHER)
    leader.is_removed = True
    assert not leader.is_certain(0.0, LEASE_UNTIL_MS)


def test_who_was_not_heard_in_this_epoch_stays_in_sync_as_long_as_its_lease_may_last() -> None:
    """It may have been the leader before, hold its lease, and not know of this epoch: what is acknowledged without it
    would be above the end that it tells.
    """
    leader = leading(ME, OTHER, rules=LagRules(max_ms=1_000, max_messages=0, lease_ms=6_000))
    assert leader.proposal(11, 6_000.0) is None
    assert leader.proposal(11, 6_001.0) == frozenset({ME})
    leader.fetched(OTHER, 10, 10, 100.0, 100.0)
    assert leader.proposal(11, 1_101.0) == frozenset({ME}), "who has fetched in this epoch leads in no other"


def test_a_leader_that_cannot_write_and_is_alone_takes_a_follower_in_and_then_leaves_the_lead_to_it() -> None:
    """Without this nobody would ever write again: too few are in sync for an append, and only an append shows that
    there is room again.
    """
    leader = leading(ME)
    assert leader.proposal(12, 50.0, can_write=False) is None
    leader.fetched(OTHER, 12, 12, 100.0, 100.0)
    assert leader.proposal(12, 101.0, can_write=False) == BOTH
    leader.settled(BOTH, BOTH, BOTH, 102.0)
    assert leader.proposal(12, 103.0, can_write=False) == frozenset({OTHER})
