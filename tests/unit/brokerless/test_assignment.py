"""Which partitions members of a group claim and give back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.brokerless.assignment import decide, share_topic
from penstock.brokerless.store import Claim, GroupClaims, GroupMember
from penstock.ids import TopicPartition

MEMBERS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


def state_of(members: list[str], claims: dict[TopicPartition, str], topics: tuple[str, ...] = ("t",)) -> GroupClaims:
    return GroupClaims(
        [GroupMember(name, frozenset(topics)) for name in members], {tp: Claim(name, 1) for tp, name in claims.items()}
    )


def settled(members: list[str], partitions: dict[str, int], claims: dict[TopicPartition, str]) -> int:
    """Lets members decide in turn until nothing changes; how many partitions moved."""
    moved = 0
    for _ in range(50):
        before = dict(claims)
        for name in members:
            decision = decide(name, state_of(members, claims, tuple(partitions)), partitions)
            for tp in decision.release:
                del claims[tp]
                moved += 1
            claims.update(dict.fromkeys(decision.claim, name))
        if claims == before:
            return moved
    raise AssertionError("the group does not come to rest")


@given(MEMBERS, st.integers(1, 20), st.data())
def test_every_partition_gets_a_member_and_shares_are_even(members: list[str], count: int, data: st.DataObject) -> None:
    tps = [TopicPartition("t", number) for number in range(count)]
    claims = data.draw(st.dictionaries(st.sampled_from(tps), st.sampled_from(members)))
    settled(members, {"t": count}, claims)
    assert set(claims) == set(tps)
    shares = Counter(claims.values())
    assert max(shares.values()) - min(shares[name] for name in members) <= 1


@given(MEMBERS, st.integers(1, 20))
def test_a_member_that_joins_takes_only_its_share(members: list[str], count: int) -> None:
    claims: dict[TopicPartition, str] = {}
    settled(members, {"t": count}, claims)
    moved = settled([*members, "new"], {"t": count}, claims)
    assert moved <= -(-count // (len(members) + 1))


@given(MEMBERS, st.integers(1, 20))
def test_when_a_member_leaves_only_its_partitions_move(members: list[str], count: int) -> None:
    members = [*members, "gone"]
    claims: dict[TopicPartition, str] = {}
    settled(members, {"t": count}, claims)
    left = {tp: name for tp, name in claims.items() if name != "gone"}
    moved = settled(members[:-1], {"t": count}, dict(left))
    assert moved == 0


def test_only_members_that_subscribe_to_a_topic_get_its_partitions() -> None:
    state = GroupClaims([GroupMember("a", frozenset({"t"})), GroupMember("b", frozenset({"other"}))], {})
    assert set(share_topic("t", 3, state).values()) == {"a"}
    assert share_topic("nobody", 3, state) == {}


def test_partitions_that_are_gone_are_given_back() -> None:
    claims = {TopicPartition("t", 0): "a", TopicPartition("t", 5): "a", TopicPartition("old", 0): "a"}
    decision = decide("a", state_of(["a"], claims), {"t": 1})
    assert decision.release == {TopicPartition("t", 5), TopicPartition("old", 0)}
    assert not decision.claim
