"""What the store on a database promises to the clients that are made of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from penstock.brokerless.producer import new_producer_id
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import (
    FencedClaimError,
    GroupMember,
    GroupOffsets,
    SendBatch,
    Sequenced,
    StoreRefusedError,
)
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.ports import Headers, Outgoing
from penstock.sql.database import Connection
from penstock.storage.sql.table_names import offset_table_of
from support.waiting import until

from .conftest import OpenStore

TOPIC = "create_order"
ZERO = TopicPartition(TOPIC, 0)
SESSION_MS = 30_000


def batch(producer: int, first: int, *values: bytes, headers: Headers = (), tp: TopicPartition = ZERO) -> SendBatch:
    return SendBatch(tp, [Outgoing(tp.topic, value, headers=headers) for value in values], Sequenced(producer, first))


def values(store: SqlStore, offset: int = 0, tp: TopicPartition = ZERO) -> list[bytes | None]:
    return [message.value for message in store.read(tp, offset, 1000).messages]


def member(name: str, topics: Sequence[str] = (TOPIC,)) -> GroupMember:
    return GroupMember(name, frozenset(topics))


def by_hand(store: SqlStore, sql: str, *params: object) -> None:
    def change(connection: Connection) -> None:
        connection.change(sql, *params)

    store.thread.change("default", change)


@pytest.fixture(autouse=True)
def _topic(store: SqlStore) -> None:
    store.topics.create(TOPIC, 2)


def test_messages_are_read_as_they_were_sent(store: SqlStore) -> None:
    headers: Headers = (("penstock-biz-id", b"7"), ("penstock-tags", b"new"), ("other", None), ("raw", b"\xff"))
    sent = Outgoing(TOPIC, b"body", key=b"key", headers=headers, timestamp_ms=1_700_000_000_000)
    offsets = store.append(SendBatch(ZERO, [sent, Outgoing(TOPIC, None)], Sequenced(new_producer_id(), 0)))
    first, second = store.read(ZERO, 0, 10).messages
    assert offsets == [0, 1]
    assert (first.value, first.key, first.headers, first.timestamp_ms) == (
        b"body",
        b"key",
        headers,
        1_700_000_000_000,
    )
    assert (second.offset, second.value, second.key, second.headers) == (1, None, None, ())


def test_a_repeated_batch_is_not_appended_again(store: SqlStore, url: str, open_store: OpenStore) -> None:
    producer = new_producer_id()
    assert store.append(batch(producer, 0, b"a", b"b")) == [0, 1]
    assert store.append(batch(producer, 2, b"c")) == [2]
    # Another process knows only what the database says of the producer.
    other = open_store(url)
    assert other.append(batch(producer, 2, b"c")) == [2]
    assert other.append(batch(producer, 0, b"a", b"b")) == [0, 1]
    assert other.append(batch(producer, 3, b"d")) == [3]
    assert values(store) == [b"a", b"b", b"c", b"d"]


def test_sequences_go_on_behind_the_largest_number(store: SqlStore) -> None:
    producer, last = new_producer_id(), (1 << 31) - 1
    assert store.append(batch(producer, last, b"a", b"b")) == [0, 1]
    assert store.append(batch(producer, last, b"a", b"b")) == [0, 1]
    assert store.append(batch(producer, last + 2, b"c")) == [2]
    assert values(store) == [b"a", b"b", b"c"]


def test_a_reader_goes_on_where_ids_have_no_rows(store: SqlStore) -> None:
    store.append(batch(new_producer_id(), 0, b"a"))
    by_hand(store, "UPDATE queue SET next_id = next_id + 5 WHERE table_name = ?", f"{TOPIC}_0")
    store.append(batch(new_producer_id(), 0, b"b"))
    assert [message.offset for message in store.read(ZERO, 0, 10).messages] == [0, 6]
    by_hand(store, "UPDATE queue SET next_id = next_id + 5 WHERE table_name = ?", f"{TOPIC}_0")
    assert store.read(ZERO, 7, 10).next_offset == 12
    assert store.bounds(ZERO) == (0, 12)


def test_what_retention_has_passed_is_not_read(store: SqlStore) -> None:
    store.append(batch(new_producer_id(), 0, b"a", b"b", b"c"))
    by_hand(store, "UPDATE queue SET start_offset = 2 WHERE table_name = ?", f"{TOPIC}_0")
    assert values(store) == [b"c"]
    assert store.bounds(ZERO) == (2, 3)


def test_a_message_that_is_too_large_is_refused_and_named(store: SqlStore) -> None:
    store.topics.create("small", 1, config={"max.message.bytes": "100"})
    at = TopicPartition("small", 0)
    with pytest.raises(StoreRefusedError, match=r"max\.message\.bytes") as caught:
        store.append(batch(new_producer_id(), 0, b"x", b"y" * 101, tp=at))
    assert caught.value.place == (0, 1)
    assert values(store, tp=at) == []


def test_a_delay_that_cannot_be_read_is_refused(store: SqlStore) -> None:
    with pytest.raises(StoreRefusedError, match="penstock-delay"):
        store.append(batch(new_producer_id(), 0, b"x", headers=(("penstock-delay", b"soon"),)))


def test_topics_that_are_not_there_or_invalid_are_told_apart(store: SqlStore) -> None:
    assert store.topics.shape("nothing") is None
    with pytest.raises(TopicError, match="does not exist"):
        store.read(TopicPartition("nothing", 0), 0, 1)
    with pytest.raises(TopicError, match="has no partition 7"):
        store.read(TopicPartition(TOPIC, 7), 0, 1)
    with pytest.raises(InvalidInputError, match="no such name"):
        store.topics.create("no such name")
    assert not store.topics.create(TOPIC, 5)
    assert store.topics.partitions(TOPIC) == 2


def test_a_partition_is_claimed_by_one_member(store: SqlStore) -> None:
    store.heartbeat("g", member("a"), SESSION_MS)
    state = store.heartbeat("g", member("b"), SESSION_MS)
    assert [each.name for each in state.members] == ["a", "b"]
    assert set(store.claim("g", "a", [ZERO])) == {ZERO}
    assert store.claim("g", "b", [ZERO]) == {}
    assert store.heartbeat("g", member("b"), SESSION_MS).claims[ZERO].member == "a"
    store.leave("g", "a")
    assert set(store.claim("g", "b", [ZERO])) == {ZERO}


def test_a_member_whose_session_is_over_loses_its_claims_and_cannot_commit(
    store: SqlStore, url: str, open_store: OpenStore
) -> None:
    late = open_store(url)
    late.heartbeat("g", member("late"), 1)
    granted = late.claim("g", "late", [ZERO]) or {}
    epoch = granted[ZERO].epoch if granted else 0
    state = store.heartbeat("g", member("b"), SESSION_MS)
    while any(each.name == "late" for each in state.members):
        state = store.heartbeat("g", member("b"), SESSION_MS)
    taken = store.claim("g", "b", [ZERO])[ZERO]
    assert taken.epoch > epoch
    store.commit(GroupOffsets("g", "b", {ZERO: 0}, {ZERO: taken.epoch}))
    with pytest.raises(FencedClaimError):
        late.commit(GroupOffsets("g", "late", {ZERO: 0}, {ZERO: epoch}))


def test_a_member_that_is_gone_is_missed_in_time_although_the_clock_was_set_back(store: SqlStore) -> None:
    store.heartbeat("g", member("gone"), SESSION_MS)
    store.claim("g", "gone", [ZERO])
    # What it has renewed by a clock that was an hour ahead.
    by_hand(store, "UPDATE direct_member SET expires_at = expires_at + 3600000000")
    until(lambda: len(store.heartbeat("g", member("b"), 1_000).members) == 1, "the member that is gone is missed")
    assert set(store.claim("g", "b", [ZERO])) == {ZERO}


def test_a_turn_that_a_leader_asked_for_before_the_clock_was_set_back_is_over(store: SqlStore) -> None:
    later_us = time.time_ns() // 1000 + 3_600_000_000
    store.append(batch(new_producer_id(), 0, b"a"))
    by_hand(store, "UPDATE queue SET token = ? WHERE table_name = ?", f"turn:{later_us}", f"{TOPIC}_0")
    assert store.append(batch(new_producer_id(), 0, b"b")) == [1]


def test_an_epoch_of_an_earlier_claim_of_the_same_member_is_refused(store: SqlStore) -> None:
    store.heartbeat("g", member("a"), SESSION_MS)
    first = store.claim("g", "a", [ZERO])[ZERO].epoch
    store.release("g", "a", {ZERO: first})
    second = store.claim("g", "a", [ZERO])[ZERO].epoch
    assert second > first
    with pytest.raises(FencedClaimError):
        store.commit(GroupOffsets("g", "a", {ZERO: 0}, {ZERO: first}))
    store.commit(GroupOffsets("g", "a", {ZERO: 0}, {ZERO: second}))


def test_committed_offsets_are_found_by_the_next_member(store: SqlStore) -> None:
    store.append(batch(new_producer_id(), 0, b"a", b"b"))
    store.heartbeat("g", member("a"), SESSION_MS)
    granted = store.claim("g", "a", [ZERO])[ZERO]
    assert granted.committed is None
    store.commit(GroupOffsets("g", "a", {ZERO: 1}, {ZERO: granted.epoch}))
    store.commit(GroupOffsets("g", "a", {ZERO: 2}, {ZERO: granted.epoch}))
    store.leave("g", "a")
    store.heartbeat("g", member("b"), SESSION_MS)
    assert store.claim("g", "b", [ZERO])[ZERO].committed == 2
    assert store.committed("g", [ZERO, TopicPartition(TOPIC, 1)]) == {ZERO: 2}


def test_initial_offsets_leave_those_alone_that_are_there(store: SqlStore) -> None:
    one = TopicPartition(TOPIC, 1)
    store.commit_initial("g", {ZERO: 3})
    store.commit_initial("g", {ZERO: 9, one: 4})
    assert store.committed("g", [ZERO, one]) == {ZERO: 3, one: 4}


def test_an_offset_that_a_person_sets_moves_a_running_group(store: SqlStore) -> None:
    store.heartbeat("g", member("a"), SESSION_MS)
    granted = store.claim("g", "a", [ZERO])[ZERO]
    store.commit(GroupOffsets("g", "a", {ZERO: 5}, {ZERO: granted.epoch}))
    assert ZERO in store.heartbeat("g", member("a"), SESSION_MS).claims
    table = offset_table_of(ZERO)
    by_hand(store, f"UPDATE {table} SET committed_offset = 2 WHERE consumer_group = ?", "g")
    assert ZERO not in store.heartbeat("g", member("a"), SESSION_MS).claims
    again = store.claim("g", "a", [ZERO])[ZERO]
    assert again.committed == 2
    by_hand(store, f"UPDATE {table} SET committed_offset = 1 WHERE consumer_group = ?", "g")
    with pytest.raises(FencedClaimError, match="set to 1"):
        store.commit(GroupOffsets("g", "a", {ZERO: 3}, {ZERO: again.epoch}))
    assert store.committed("g", [ZERO]) == {ZERO: 1}


def test_a_transaction_is_stored_as_a_whole_or_not_at_all(store: SqlStore) -> None:
    one = TopicPartition(TOPIC, 1)
    store.heartbeat("g", member("a"), SESSION_MS)
    epoch = store.claim("g", "a", [ZERO])[ZERO].epoch
    producer = new_producer_id()
    batches = [batch(producer, 0, b"a"), batch(producer, 0, b"b", tp=one)]
    with pytest.raises(FencedClaimError):
        store.commit_transaction(batches, GroupOffsets("g", "a", {ZERO: 1}, {ZERO: epoch - 1}), None)
    assert (values(store), values(store, tp=one)) == ([], [])
    offsets = GroupOffsets("g", "a", {ZERO: 1}, {ZERO: epoch})
    fence = store.fence("shop")
    assert store.commit_transaction(batches, offsets, fence) == [[0], [0]]
    # A repetition whose first attempt was not answered.
    assert store.commit_transaction(batches, offsets, fence) == [[0], [0]]
    assert (values(store), values(store, tp=one)) == ([b"a"], [b"b"])
    assert store.committed("g", [ZERO]) == {ZERO: 1}
    store.fence("shop")
    with pytest.raises(FencedClaimError, match="shop"):
        store.commit_transaction([batch(producer, 1, b"c")], None, fence)
    assert values(store) == [b"a"]
