"""A reset beside transactions, and the mark that asks for one."""

from __future__ import annotations

import pytest

from penstock.cluster.metadata import MetadataImage
from penstock.config.group import RESET_MARK
from penstock.errors import ApiError, Code
from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.members import ClassicMember, Protocol
from penstock.groups.events import MemberEpoch, Outcome
from penstock.groups.offsets import Committed, OffsetRecord
from penstock.groups.reset import GUARD_MS, asks_for_reset
from penstock.groups.rules import GroupRules, OffsetRules
from penstock.groups.shard import Shard
from penstock.ids import BrokerId, TopicPartition

AT = TopicPartition("orders", 0)
PRODUCER = 7
MEMBER = MemberEpoch("a-1", None, 3)
NO_MEMBER = MemberEpoch("", None, -1)


def offset(number: int) -> Committed:
    return Committed(number, -1, "", 0)


@pytest.fixture
def shard() -> Shard:
    """A group with one member."""
    rules = GroupRules(
        min_session_timeout_ms=1,
        max_session_timeout_ms=60_000,
        initial_rebalance_delay_ms=0,
        max_members=10,
        max_bytes=10_000,
        new_member_id=lambda name: f"{name}-1",
    )
    offsets = OffsetRules(max_metadata_bytes=100, retention_ms=1_000_000, max_offsets=10, max_groups=10)
    shard = Shard(rules, offsets, MetadataImage(1, "cluster", {}, BrokerId(1), {}, {}))
    member = ClassicMember("a-1", None, "a", "/", 10_000, 10_000, (Protocol("range", b""),), b"")
    shard.apply(
        GenerationRecord(
            group_id="g",
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="a-1",
            changed_ms=0,
            members=(member,),
        ),
        0,
    )
    return shard


def carry_out(shard: Shard, outcome: Outcome, pending_for: int | None = None) -> None:
    for record in outcome.records:
        shard.apply(record, 0, pending_for)


def reset(shard: Shard, number: int) -> None:
    refusal, codes, outcome = shard.reset("g", {AT: offset(number)}, 0)
    assert (refusal, codes) == (None, {AT: Code.NONE})
    assert outcome.is_whole
    carry_out(shard, outcome)


def committed(shard: Shard) -> int:
    return shard.offsets.of("g")[AT].offset


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_transaction_has_pending_is_overtaken(shard: Shard, is_committed: bool) -> None:
    refusal, _, outcome = shard.commit("g", MEMBER, {AT: offset(50)}, 0, in_transaction=True)
    assert refusal is None
    carry_out(shard, outcome, PRODUCER)
    reset(shard, 5)
    shard.offsets.end_transaction(PRODUCER, committed=is_committed)
    assert committed(shard) == 5


def test_a_transaction_cannot_commit_for_a_member_that_is_out(shard: Shard) -> None:
    reset(shard, 5)
    refusal, _, outcome = shard.commit("g", MEMBER, {AT: offset(51)}, 0, in_transaction=True)
    assert refusal is Code.UNKNOWN_MEMBER_ID
    assert outcome.records == []


def test_a_transaction_cannot_commit_for_nobody_while_the_group_is_guarded(shard: Shard) -> None:
    reset(shard, 5)
    assert (
        shard.commit("g", NO_MEMBER, {AT: offset(51)}, GUARD_MS - 1, in_transaction=True)[0] is Code.UNKNOWN_MEMBER_ID
    )
    assert shard.commit("g", NO_MEMBER, {AT: offset(51)}, GUARD_MS, in_transaction=True)[0] is None


def test_offsets_come_after_the_end_of_the_members_in_the_same_batch(shard: Shard) -> None:
    _, _, outcome = shard.reset("g", {AT: offset(5)}, 0)
    group, written = outcome.records
    assert isinstance(group, GenerationRecord)
    assert (group.generation, group.members, group.is_reset) == (4, (), True)
    assert written == OffsetRecord("g", AT, offset(5))


def test_the_mark_is_read_with_the_byte_that_some_clients_send_behind_it() -> None:
    assert asks_for_reset([RESET_MARK, f"{RESET_MARK}\0"])
    assert not asks_for_reset([])
    assert not asks_for_reset(["", "other"])


def test_some_with_the_mark_and_some_without_are_refused() -> None:
    with pytest.raises(ApiError) as refusal:
        asks_for_reset([RESET_MARK, ""])
    assert refusal.value.code is Code.INVALID_REQUEST
