"""What every store promises to the parts that make a client of it."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.brokerless.store import FencedClaimError, GroupClaims, GroupOffsets, QueueStore, StoreRefusedError
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError, TopicError
from penstock.sdk.headers import CANCEL, DELAY, DELIVER_AT, SCHEDULE, TIMER_ID, value_of
from penstock.sdk.ports import Outgoing
from penstock.sdk.timers import TimerQuery
from support.queue_stores import OpenStore, all_values, batch, joined, offsets, values
from support.waiting import until

TP = TopicPartition("orders", 0)
SOON: tuple[tuple[str, bytes | None], ...] = ((DELAY, b"50ms"),)
LATER: tuple[tuple[str, bytes | None], ...] = ((DELAY, b"1h"),)


@pytest.fixture(autouse=True)
def orders(store: QueueStore) -> None:
    store.topics.create("orders", 2)


# Topics


def test_topic_is_created_once_and_seen_by_others(store: QueueStore, open_store: OpenStore) -> None:
    assert not store.topics.create("orders", 7)
    assert open_store().topics.partitions("orders") == 2


def test_missing_topic_has_no_shape(store: QueueStore) -> None:
    assert store.topics.shape("none") is None
    with pytest.raises(TopicError):
        store.topics.partitions("none")
    with pytest.raises(TopicError):
        store.settings("none")


def test_view_has_the_partitions_of_its_base_and_takes_no_messages(store: QueueStore) -> None:
    config = {"penstock.view.of": "orders", "penstock.view.tags": "a and not b"}
    store.topics.create("orders.view", config=config)
    assert store.topics.partitions("orders.view") == 2
    assert store.settings("orders.view")["penstock.view.tags"] == "a and not b"
    with pytest.raises(StoreRefusedError):
        store.append(batch(TopicPartition("orders.view", 0), "a"))


@pytest.mark.parametrize("name", ["", "a/b", "..", "a" * 250])
def test_impossible_names_are_refused(store: QueueStore, name: str) -> None:
    with pytest.raises(InvalidInputError):
        store.topics.create(name)


def test_malformed_tags_are_refused(store: QueueStore) -> None:
    with pytest.raises(InvalidInputError):
        store.topics.create("bad", config={"penstock.view.of": "orders", "penstock.view.tags": "a and"})


# Messages


def test_messages_come_back_as_they_were_sent(store: QueueStore, open_store: OpenStore) -> None:
    sent = [
        Outgoing("orders", b"v", b"k", (("h", b"1"), ("h", None), ("x", b"")), timestamp_ms=1234),
        Outgoing("orders", None, None),
        Outgoing("orders", b"", b""),
        Outgoing("orders", bytes(range(256)) * 300, "ключ".encode(), (("имя", b"\xff"),)),
    ]
    made = batch(TP)
    assert list(store.append(type(made)(TP, sent, made.sequence))) == [0, 1, 2, 3]
    page = open_store().read(TP, 0, 10)
    assert page.next_offset == 4
    assert [(each.value, each.key, each.headers) for each in page.messages] == [
        (each.value, each.key, each.headers) for each in sent
    ]
    assert [each.offset for each in page.messages] == [0, 1, 2, 3]
    assert page.messages[0].timestamp_ms == 1234
    assert page.messages[1].timestamp_ms is not None


def test_offsets_rise_without_gaps_and_partitions_are_apart(store: QueueStore) -> None:
    other = TopicPartition("orders", 1)
    assert list(store.append(batch(TP, "a", "b"))) == [0, 1]
    assert list(store.append(batch(other, "x"))) == [0]
    assert list(store.append(batch(TP, "c", first=2))) == [2]
    assert all_values(store, TP) == ["a", "b", "c"]
    assert all_values(store, other) == ["x"]
    assert store.bounds(TP) == (0, 3)


def test_read_in_the_middle_and_at_the_end(store: QueueStore) -> None:
    store.append(batch(TP, *"abcdef"))
    page = store.read(TP, 2, 3)
    assert (values(page.messages), page.next_offset) == (["c", "d", "e"], 5)
    page = store.read(TP, 6, 3)
    assert (values(page.messages), page.next_offset) == ([], 6)


def test_repeated_append_is_stored_once(store: QueueStore) -> None:
    store.append(batch(TP, "a", "b"))
    store.append(batch(TP, "other", producer=(1 << 62) + 5))
    assert list(store.append(batch(TP, "a", "b"))) == [0, 1]
    assert list(store.append(batch(TP, "c", first=2))) == [3]
    assert all_values(store, TP) == ["a", "b", "other", "c"]


def test_append_to_what_does_not_exist(store: QueueStore) -> None:
    with pytest.raises((TopicError, StoreRefusedError)):
        store.append(batch(TopicPartition("orders", 9), "a"))


def test_readers_in_other_places_see_appends_in_turn(store: QueueStore, open_store: OpenStore) -> None:
    other = open_store()
    for number in range(20):
        writer = (store, other)[number % 2]
        writer.append(batch(TP, str(number), producer=(1 << 62) + number % 2, first=number // 2))
        assert all_values((other, store)[number % 2], TP) == [str(each) for each in range(number + 1)]


def test_many_writers_at_once_lose_and_repeat_nothing(store: QueueStore, open_store: OpenStore) -> None:
    stores = [store, open_store(), open_store()]

    def write(place: int) -> None:
        for number in range(30):
            stores[place].append(batch(TP, f"{place}-{number}", producer=(1 << 62) + place, first=number))

    threads = [threading.Thread(target=write, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = all_values(open_store(), TP)
    assert len(found) == 90
    for place in range(3):
        assert [each for each in found if each.startswith(f"{place}-")] == [f"{place}-{n}" for n in range(30)]


def test_wait_ends_when_something_comes(store: QueueStore, open_store: OpenStore) -> None:
    store.append(batch(TP, "a"))
    reader = open_store()
    assert values(reader.read(TP, 0, 10).messages) == ["a"]
    thread = threading.Thread(target=lambda: reader.wait({TP: 1}, 30))
    thread.start()
    store.append(batch(TP, "b", first=1))
    thread.join(20)
    assert not thread.is_alive()
    assert values(reader.read(TP, 1, 10).messages) == ["b"]


def test_wait_returns_when_its_time_is_over(store: QueueStore) -> None:
    store.read(TP, 0, 10)
    store.wait({TP: 0}, 0.01)
    store.wait({}, 0.01)


def test_too_large_message_is_refused_and_nothing_of_its_batch_is_stored(store: QueueStore) -> None:
    store.topics.create("small", 1, config={"max.message.bytes": "10"})
    tp = TopicPartition("small", 0)
    with pytest.raises(StoreRefusedError):
        store.append(batch(tp, "ok", "x" * 11))
    assert store.bounds(tp) == (0, 0)


# Delayed messages


def test_delayed_message_arrives_once_with_its_due_time(store: QueueStore, open_store: OpenStore) -> None:
    other = open_store()
    before_ms = time.time_ns() // 1_000_000
    assert list(store.append(batch(TP, "later", headers=SOON))) == [None]
    until(lambda: all_values(other, TP), "the message is delivered")
    (message,) = store.read(TP, 0, 10).messages
    due_ms = int(value_of(message.headers, DELIVER_AT) or b"0")
    assert before_ms + 50 <= due_ms <= (message.timestamp_ms or 0)
    assert value_of(message.headers, DELAY) is None
    assert store.read_timers(TimerQuery("orders")) == []


def test_batch_of_both_kinds_is_stored_once(store: QueueStore) -> None:
    made = batch(TP, "now", "later", "now too")
    messages = [made.messages[0], Outgoing("orders", b"later", None, LATER), made.messages[2]]
    mixed = type(made)(TP, messages, made.sequence)
    assert list(store.append(mixed)) == [0, None, 1]
    assert list(store.append(mixed)) == [0, None, 1]
    assert all_values(store, TP) == ["now", "now too"]
    assert len(store.read_timers(TimerQuery("orders"))) == 1


def test_timers_are_listed_by_due_time_and_window(store: QueueStore, open_store: OpenStore) -> None:
    now_ms = time.time_ns() // 1_000_000
    for number, minutes in enumerate((30, 10, 20)):
        due = str(now_ms + minutes * 60_000).encode()
        store.append(batch(TP, f"in {minutes}", first=number, headers=((DELIVER_AT, due),)))
    other = open_store()
    assert [each.value for each in other.read_timers(TimerQuery("orders"))] == [b"in 10", b"in 20", b"in 30"]
    window = TimerQuery("orders", from_ms=now_ms + 15 * 60_000, until_ms=now_ms + 25 * 60_000)
    assert [each.value for each in other.read_timers(window)] == [b"in 20"]
    assert [each.value for each in other.read_timers(TimerQuery("orders", limit=1))] == [b"in 10"]
    assert other.read_timers(TimerQuery("orders", partition=1)) == []
    with pytest.raises(TopicError):
        other.read_timers(TimerQuery("none"))


def test_named_message_is_replaced_and_cancelled(store: QueueStore) -> None:
    name: tuple[str, bytes | None] = (TIMER_ID, b"close-1")
    store.append(batch(TP, "first", headers=(*LATER, name)))
    store.append(batch(TP, "second", first=1, headers=(*LATER, name)))
    query = TimerQuery("orders", timer_id="close-1")
    assert [each.value for each in store.read_timers(query)] == [b"second"]
    assert list(store.append(batch(TP, "", first=2, headers=((CANCEL, b"close-1"),)))) == [None]
    assert store.read_timers(query) == []
    assert store.bounds(TP) == (0, 0)


def test_schedule_comes_again(store: QueueStore) -> None:
    store.append(batch(TP, "tick", headers=((SCHEDULE, b"every 1s"), (TIMER_ID, b"t"))))
    until(lambda: len(all_values(store, TP)) >= 2, "the schedule has come twice")
    assert [each.value for each in store.read_timers(TimerQuery("orders", timer_id="t"))] == [b"tick"]


def test_topic_bounds_its_delays_and_names_its_levels(store: QueueStore) -> None:
    store.topics.create("soon", 1, config={"penstock.delay.max.ms": "60000", "penstock.delay.levels": "30s"})
    tp = TopicPartition("soon", 0)
    assert list(store.append(batch(tp, "a", headers=((DELAY, b"level:1"),)))) == [None]
    for refused in (b"level:2", b"2m"):
        with pytest.raises(StoreRefusedError):
            store.append(batch(tp, "b", first=1, headers=((DELAY, refused),)))


def test_malformed_delay_is_refused(store: QueueStore) -> None:
    with pytest.raises(StoreRefusedError):
        store.append(batch(TP, "a", headers=((DELAY, b"soon"),)))


# Groups


def test_partition_has_one_member_and_epochs_rise(store: QueueStore, open_store: OpenStore) -> None:
    other = open_store()
    joined(store, "g", "a", "orders")
    joined(other, "g", "b", "orders")
    first = store.claim("g", "a", [TP])[TP]
    assert other.claim("g", "b", [TP]) == {}
    store.release("g", "a", {TP: first.epoch})
    second = other.claim("g", "b", [TP])[TP]
    assert second.epoch > first.epoch
    state = store.heartbeat("g", joined(store, "g", "a", "orders"), 60_000)
    assert {member.name for member in state.members} == {"a", "b"}
    assert state.claims[TP].member == "b"
    assert state.claims[TP].epoch == second.epoch


def test_release_of_a_claim_that_is_lost_changes_nothing(store: QueueStore) -> None:
    joined(store, "g", "a", "orders")
    joined(store, "g", "b", "orders")
    first = store.claim("g", "a", [TP])[TP]
    store.leave("g", "a")
    assert TP in store.claim("g", "b", [TP])
    store.release("g", "a", {TP: first.epoch})
    state = store.heartbeat("g", joined(store, "g", "b", "orders"), 60_000)
    assert state.claims[TP].member == "b"


def test_committed_offset_is_where_the_next_member_goes_on(store: QueueStore, open_store: OpenStore) -> None:
    store.append(batch(TP, *"abc"))
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    assert grant.committed is None
    store.commit(offsets("g", "a", TP, 2, grant.epoch))
    store.leave("g", "a")
    other = open_store()
    joined(other, "g", "b", "orders")
    assert other.claim("g", "b", [TP])[TP].committed == 2
    assert other.committed("g", [TP, TopicPartition("orders", 1)]) == {TP: 2}
    assert other.committed("another", [TP]) == {}


def test_member_whose_session_is_over_is_fenced(store: QueueStore) -> None:
    store.append(batch(TP, *"abc"))
    joined(store, "g", "late", "orders", session_ms=1)
    grants = store.claim("g", "late", [TP])
    state: GroupClaims | None = until(
        lambda: (
            found
            if len((found := store.heartbeat("g", joined(store, "g", "b", "orders"), 60_000)).members) == 1
            else None
        ),
        "the session is over",
    )
    assert state is not None and state.claims == {}
    assert TP in store.claim("g", "b", [TP])
    epoch = grants[TP].epoch if grants else 0
    with pytest.raises(FencedClaimError):
        store.commit(offsets("g", "late", TP, 3, epoch))
    assert store.claim("g", "late", [TopicPartition("orders", 1)]) == {}
    assert store.committed("g", [TP]) == {}


def test_commit_is_all_or_nothing(store: QueueStore) -> None:
    store.append(batch(TP, *"abc"))
    other = TopicPartition("orders", 1)
    joined(store, "g", "a", "orders")
    grants = store.claim("g", "a", [TP, other])
    store.release("g", "a", {other: grants[other].epoch})
    both = GroupOffsets("g", "a", {TP: 1, other: 1}, {tp: grant.epoch for tp, grant in grants.items()})
    with pytest.raises(FencedClaimError):
        store.commit(both)
    assert store.committed("g", [TP, other]) == {}


def test_initial_commit_leaves_what_is_there(store: QueueStore) -> None:
    store.append(batch(TP, *"abc"))
    other = TopicPartition("orders", 1)
    store.append(batch(other, *"abc"))
    store.commit_initial("g", {TP: 1})
    store.commit_initial("g", {TP: 3, other: 2})
    assert store.committed("g", [TP, other]) == {TP: 1, other: 2}


def test_offsets_of_a_view_are_its_own(store: QueueStore) -> None:
    store.append(batch(TP, *"abc"))
    store.topics.create("orders.view", config={"penstock.view.of": "orders", "penstock.view.tags": "a"})
    view = TopicPartition("orders.view", 0)
    joined(store, "g", "a", "orders.view")
    grant = store.claim("g", "a", [view])[view]
    store.commit(offsets("g", "a", view, 2, grant.epoch))
    assert store.committed("g", [view, TP]) == {view: 2}


# Transactions


def test_transaction_appends_and_commits_together(store: QueueStore, open_store: OpenStore) -> None:
    store.topics.create("invoices", 1)
    store.append(batch(TP, *"abc"))
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    fence = store.fence("t")
    batches = [batch(TopicPartition("invoices", 0), "x", "y"), batch(TP, "d", producer=(1 << 62) + 1)]
    assert [list(each) for each in store.commit_transaction(batches, offsets("g", "a", TP, 3, grant.epoch), fence)] == [
        [0, 1],
        [3],
    ]
    other = open_store()
    assert all_values(other, TopicPartition("invoices", 0)) == ["x", "y"]
    assert all_values(other, TP) == ["a", "b", "c", "d"]
    assert other.committed("g", [TP]) == {TP: 3}


def test_fenced_transaction_does_nothing(store: QueueStore) -> None:
    old = store.fence("t")
    assert store.fence("t").epoch > old.epoch
    with pytest.raises(FencedClaimError):
        store.commit_transaction([batch(TP, "a")], None, old)
    assert store.bounds(TP) == (0, 0)


def test_transaction_of_a_lost_claim_does_nothing(store: QueueStore) -> None:
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    store.leave("g", "a")
    with pytest.raises(FencedClaimError):
        store.commit_transaction([batch(TP, "a")], offsets("g", "a", TP, 1, grant.epoch), None)
    assert store.bounds(TP) == (0, 0)
    assert store.committed("g", [TP]) == {}


def test_refused_transaction_does_nothing_and_names_the_message(store: QueueStore) -> None:
    with pytest.raises(StoreRefusedError) as refused:
        store.commit_transaction(
            [batch(TP, "a"), batch(TopicPartition("orders", 1), "b", headers=((DELAY, b"soon"),))], None, None
        )
    assert refused.value.place == (1, 0)
    assert store.bounds(TP) == (0, 0)


def test_repeated_transaction_is_made_once(store: QueueStore) -> None:
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    batches = [batch(TP, "a"), batch(TopicPartition("orders", 1), "b", "c")]
    position = offsets("g", "a", TP, 1, grant.epoch)
    first = store.commit_transaction(batches, position, None)
    again = store.commit_transaction(batches, position, None)
    assert [list(each) for each in first] == [list(each) for each in again] == [[0], [0, 1]]
    assert all_values(store, TP) == ["a"]
