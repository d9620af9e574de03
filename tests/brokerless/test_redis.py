"""Queues in Redis: a server that is killed, trimming, what tools for Redis see, two clients that deliver at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.brokerless.redis.queue import RedisQueue
from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.redis.store import RedisStore
from penstock.brokerless.store import QueueStore, StoreAwayError, StoreRefusedError
from penstock.ids import TopicPartition
from penstock.sdk.errors import TopicError
from penstock.sdk.headers import DELAY
from support.queue_stores import all_values, batch, joined, offsets
from support.stores import RedisProcess
from support.waiting import until

TP = TopicPartition("orders", 0)

NewStore = Callable[[], RedisStore]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server that a test may kill."""
    process = RedisProcess(tmp_path / "redis").start()
    yield process
    process.kill()


@pytest.fixture
def new_store(process: RedisProcess, opened: ExitStack) -> NewStore:
    """Without maintenance: nothing is delivered unless the test does it."""
    return lambda: opened.enter_context(closing(RedisStore(RedisServer(process.url, process.url, "test"))))


@pytest.fixture
def store(new_store: NewStore) -> RedisStore:
    store = new_store()
    store.topics.create("orders", 2)
    return store


@pytest.fixture
def server(process: RedisProcess) -> Iterator[Any]:
    with redis.Redis.from_url(process.url) as client:
        yield client


def persistently(store: QueueStore, number: int) -> None:
    """Append a message as a producer would: with the same sequence until the store answers."""

    def is_appended() -> bool:
        try:
            store.append(batch(TP, str(number), first=number))
        except StoreAwayError:
            return False
        return True

    until(is_appended, "the message is appended")


def test_killed_server_loses_and_doubles_nothing(process: RedisProcess, store: RedisStore) -> None:
    stop = threading.Event()
    sent = 0

    def write() -> None:
        nonlocal sent
        while not stop.is_set():
            persistently(store, sent)
            sent += 1

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(3):
        before = sent
        until(lambda before=before: sent > before + 50, "messages are written")
        process.kill()
        process.start()
    stop.set()
    writer.join()
    assert all_values(store, TP) == [str(number) for number in range(sent)]


def test_delayed_messages_and_groups_survive_a_killed_server(process: RedisProcess, store: RedisStore) -> None:
    store.append(batch(TP, *"abc"))
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    store.commit(offsets("g", "a", TP, 2, grant.epoch))
    store.append(batch(TP, "late", producer=9, headers=((DELAY, b"1ms"),)))
    process.kill()
    with pytest.raises((StoreAwayError, TopicError)):
        store.read(TP, 0, 10)
    process.start()
    assert store.committed("g", [TP]) == {TP: 2}
    until(lambda: store.deliver() == 0, "the delayed message is due")
    assert all_values(store, TP) == ["a", "b", "c", "late"]
    store.commit(offsets("g", "a", TP, 3, grant.epoch))


def test_message_is_delivered_once_by_clients_that_deliver_at_the_same_time(
    store: RedisStore, new_store: NewStore
) -> None:
    for number in range(200):
        store.append(batch(TP, f"{number:03}", first=number, headers=((DELAY, b"300ms"),)))
    stores = [store, new_store(), new_store()]

    def deliver(each: RedisStore) -> None:
        until(lambda: each.deliver() == -1, "nothing waits")

    threads = [threading.Thread(target=deliver, args=(each,)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(all_values(store, TP)) == [f"{number:03}" for number in range(200)]


def test_messages_due_in_one_millisecond_keep_their_order(store: RedisStore) -> None:
    made = batch(TP, *(str(number) for number in range(30)), headers=((DELAY, b"1ms"),))
    store.append(made)
    until(lambda: store.deliver() == 0, "they are due")
    assert all_values(store, TP) == [str(number) for number in range(30)]


def test_what_all_groups_have_committed_is_trimmed(store: RedisStore, server: Any) -> None:
    store.topics.create("orders.view", config={"penstock.view.of": "orders", "penstock.view.tags": "a"})
    view = TopicPartition("orders.view", 0)
    store.append(batch(TP, *(str(number) for number in range(10))))
    store.trim_acknowledged()
    assert store.bounds(TP) == (0, 10)
    for group, tp, position in (("g", TP, 8), ("h", view, 5)):
        joined(store, group, "a", tp.topic)
        grant = store.claim(group, "a", [tp])[tp]
        store.commit(offsets(group, "a", tp, position, grant.epoch))
    joined(store, "new", "a", "orders")
    grant = store.claim("new", "a", [TP])[TP]
    store.trim_acknowledged()
    assert store.bounds(TP) == (0, 10)
    store.commit(offsets("new", "a", TP, 9, grant.epoch))
    store.trim_acknowledged()
    assert store.bounds(TP) == (5, 10)
    assert all_values(store, TP) == [str(number) for number in range(5, 10)]
    assert server.xlen("{test}:log:orders:0") == 5


def test_topic_keeps_no_more_messages_than_its_setting(store: RedisStore, server: Any) -> None:
    store.topics.create("few", 1, config={"retention.messages": "100"})
    tp = TopicPartition("few", 0)
    for number in range(20):
        store.append(batch(tp, *["x"] * 50, first=number * 50))
    assert server.xlen("{test}:log:few:0") <= 300
    first, end = store.bounds(tp)
    assert end == 1000 and first >= 700
    assert store.read(tp, 0, 1).messages[0].offset == first


def test_groups_are_those_of_the_streams(store: RedisStore, server: Any) -> None:
    store.append(batch(TP, *"abc"))
    joined(store, "g", "a", "orders")
    grant = store.claim("g", "a", [TP])[TP]
    store.commit(offsets("g", "a", TP, 2, grant.epoch))
    (group,) = server.xinfo_groups("{test}:log:orders:0")
    assert (group["name"], group["last-delivered-id"]) == (b"g", b"2-1")
    assert [fields[b"v"] for _, fields in server.xrange("{test}:log:orders:0")] == [b"a", b"b", b"c"]


def test_full_server_takes_messages_again_when_it_has_room(store: RedisStore, server: Any) -> None:
    store.append(batch(TP, "a"))
    server.config_set("maxmemory", 1)
    with pytest.raises(StoreAwayError) as full:
        store.append(batch(TP, "b", first=1))
    assert not full.value.is_outcome_unknown
    server.config_set("maxmemory", 0)
    assert list(store.append(batch(TP, "b", first=1))) == [1]


def test_key_of_another_type_is_an_error_that_names_the_server(store: RedisStore, server: Any) -> None:
    server.set("{test}:log:orders:1", "mine")
    with pytest.raises(StoreRefusedError, match="redis://"):
        store.read(TopicPartition("orders", 1), 0, 1)


def test_delayed_messages_are_bounded(process: RedisProcess, opened: ExitStack) -> None:
    server = RedisServer(process.url, process.url, "small")
    store = opened.enter_context(closing(RedisStore(server, max_delayed=2)))
    store.topics.create("orders", 1)
    for number in range(2):
        store.append(batch(TP, "x", first=number, headers=((DELAY, b"1h"),)))
    with pytest.raises(StoreAwayError, match="takes no more"):
        store.append(batch(TP, "x", first=2, headers=((DELAY, b"1h"),)))


def test_client_that_opens_later_delivers_what_a_client_left(process: RedisProcess, store: RedisStore) -> None:
    store.append(batch(TP, "late", headers=((DELAY, b"1ms"),)))
    with closing(RedisQueue(RedisServer(process.url, process.url, "test"))) as queue:
        until(lambda: all_values(queue, TP) == ["late"], "the message is delivered")
