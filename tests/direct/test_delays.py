"""Delayed messages without a broker: delivered once, by one of the clients, in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from penstock.brokerless.producer import new_producer_id
from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import SendBatch, Sequenced
from penstock.clock import SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.ports import Headers, Outgoing
from penstock.sdk.timers import TimerQuery
from support.waiting import until

from .conftest import OpenStore

TOPIC = "reminders"
ZERO = TopicPartition(TOPIC, 0)


def messages(store: SqlStore) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while True:
        page = store.read(ZERO, offset, 1000)
        found += [message.value for message in page.messages]
        if page.next_offset == offset:
            return found
        offset = page.next_offset


def sender(store: SqlStore) -> Callable[[bytes | None, Headers], None]:
    producer = new_producer_id()
    sent = 0

    def send(value: bytes | None, headers: Headers) -> None:
        nonlocal sent
        store.append(SendBatch(ZERO, [Outgoing(TOPIC, value, headers=headers)], Sequenced(producer, sent)))
        sent += 1

    return send


def due_in(milliseconds: int) -> Headers:
    return (("penstock-deliver-at", str(SystemClock().now_ms() + milliseconds).encode()),)


def test_clients_that_append_while_the_custodian_delivers_cause_no_log_lines(
    store: SqlStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The custodian writes into tables that clients write into all the time: that is no news."""
    caplog.set_level(logging.INFO, "penstock")
    store.topics.create(TOPIC, 1)
    send = sender(store)
    for number in range(40):
        send(b"now %d" % number, ())
        if number % 8 == 0:
            send(b"later %d" % number, due_in(200))
    until(lambda: len(messages(store)) == 45, "all are delivered")
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "appended first" in line or "could not take in" in line]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_delayed_message_is_delivered_and_never_early(store: SqlStore) -> None:
    store.topics.create(TOPIC, 1)
    due_ms = SystemClock().now_ms() + 700
    send = sender(store)
    send(b"later", (("penstock-deliver-at", str(due_ms).encode()),))
    send(b"now", ())
    assert messages(store) == [b"now"]
    until(lambda: len(messages(store)) == 2, "the delayed message is delivered")
    assert SystemClock().now_ms() >= due_ms
    assert messages(store) == [b"now", b"later"]


def test_a_timer_is_replaced_and_cancelled_by_its_id(store: SqlStore) -> None:
    store.topics.create(TOPIC, 1)
    send = sender(store)
    for value in (b"first", b"second"):
        send(value, (*due_in(1500), ("penstock-timer-id", b"a")))
    send(b"cancelled", (*due_in(1500), ("penstock-timer-id", b"b")))
    send(None, (("penstock-cancel", b"b"),))
    send(b"last", due_in(2500))
    until(lambda: b"last" in messages(store), "the last message is delivered")
    assert messages(store) == [b"second", b"last"]


def test_a_thousand_messages_of_one_millisecond_in_small_batches_are_delivered_once(
    url: str, open_store: OpenStore
) -> None:
    stores = [open_store(url) for _ in range(2)]
    stores[0].topics.create(TOPIC, 1)
    headers = due_in(8000)

    def send_some(store: SqlStore, first: int) -> None:
        producer = new_producer_id()
        for number in range(first, first + 500, 10):
            some = [Outgoing(TOPIC, b"%d" % each, headers=headers) for each in range(number, number + 10)]
            store.append(SendBatch(ZERO, some, Sequenced(producer, number)))

    threads = [threading.Thread(target=send_some, args=(store, 500 * at)) for at, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(messages(stores[0])) >= 1000, "all are delivered")
    found = messages(stores[0])
    assert sorted(int(value or b"") for value in found) == list(range(1000))
    for first in (0, 500):
        own = [int(value or b"") for value in found if first <= int(value or b"") < first + 500]
        assert own == sorted(own)


def test_another_client_takes_over_when_the_one_that_delivers_is_gone(url: str, open_store: OpenStore) -> None:
    first = SqlStore(url)
    first.topics.create(TOPIC, 1)
    send = sender(first)
    for number in range(20):
        send(b"%d" % number, due_in(2000 + 100 * number))
    second = open_store(url)
    assert second.bounds(ZERO)[0] == 0
    until(lambda: len(messages(second)) >= 5, "the first client delivers")
    first.close()
    until(lambda: len(messages(second)) >= 20, "the second client delivers")
    assert messages(second) == [b"%d" % number for number in range(20)]


def test_messages_wait_in_the_database_while_no_client_is_there(url: str, open_store: OpenStore) -> None:
    first = SqlStore(url)
    first.topics.create(TOPIC, 1)
    sender(first)(b"later", due_in(50))
    first.close()
    second = open_store(url)
    until(lambda: messages(second) == [b"later"], "it is delivered")


def test_messages_that_wait_are_listed_by_any_client(url: str, open_store: OpenStore) -> None:
    stores = [open_store(url) for _ in range(2)]
    stores[0].topics.create(TOPIC, 1)
    send = sender(stores[0])
    for minutes in (3, 1, 2):
        headers: Headers = (*due_in(minutes * 60_000), ("penstock-timer-id", b"%d" % minutes))
        send(b"in %d minutes" % minutes, headers)
    send(None, (("penstock-cancel", b"2"),))
    for is_taken_in in (False, True):
        if is_taken_in:
            until(lambda: inbox(stores[0]) == [(0,)], "the leader has taken everything in")
        for store in stores:
            listed = store.read_timers(TimerQuery(TOPIC))
            assert [each.value for each in listed] == [b"in 1 minutes", b"in 3 minutes"]
            assert [each.value for each in store.read_timers(TimerQuery(TOPIC, timer_id="3"))] == [b"in 3 minutes"]
            assert store.read_timers(TimerQuery(TOPIC, timer_id="2")) == []
            assert len(store.read_timers(TimerQuery(TOPIC, limit=1))) == 1
            assert store.read_timers(TimerQuery(TOPIC, until_ms=SystemClock().now_ms())) == []


def inbox(store: SqlStore) -> list[tuple[int]]:
    return store.thread.read("default", lambda connection: connection.execute("SELECT COUNT(*) FROM queue_inbox"))
