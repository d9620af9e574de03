"""Dedup: one suite over all stores, and subscriptions that use them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import penstock
from conftest import BrokerFactory
from penstock.sdk.dedup.store import ClaimedElsewhere, ClaimResult, Store
from penstock.sdk.topic_names import retry_topic
from support.broker_process import BrokerProcess
from support.receiving import SOON, Heard, create, running, wait_until_committed
from support.stores import MariaDbProcess, RedisProcess
from support.subscribers import SETTINGS, Subscribers
from support.waiting import PATIENCE_S, until

LONG_MS = 600_000
SHORT_MS = 150


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis") / "1")
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture(params=["memory", "sqlite", "mariadb", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "memory":
            made: Store = penstock.MemoryStore()
        case "sqlite":
            made = penstock.SqlStore(f"sqlite:///{tmp_path / 'dedup.db'}")
        case "mariadb":
            made = penstock.SqlStore(request.getfixturevalue("mariadb").url)
        case _:
            made = penstock.RedisStore(request.getfixturevalue("redis_server").url)
    yield made
    made.close()


@pytest.fixture
def group(topic: str) -> str:
    """A name that no other test uses."""
    return topic


def test_an_id_is_claimed_once_and_done_once(store: Store, group: str) -> None:
    assert store.claim(group, "a", "one", LONG_MS) is ClaimResult.CLAIMED
    busy = store.claim(group, "a", "two", LONG_MS)
    assert isinstance(busy, ClaimedElsewhere)
    assert 0 < busy.lease_left_ms <= LONG_MS
    assert store.complete(group, "a", "one", LONG_MS)
    assert store.claim(group, "a", "two", LONG_MS) is ClaimResult.DONE
    assert store.claim(group, "a", "one", LONG_MS) is ClaimResult.DONE


def test_ids_and_groups_are_apart(store: Store, group: str) -> None:
    assert store.claim(group, "a", "one", LONG_MS) is ClaimResult.CLAIMED
    assert store.claim(group, "b", "two", LONG_MS) is ClaimResult.CLAIMED
    assert store.claim(f"{group} a", "", "three", LONG_MS) is ClaimResult.CLAIMED
    assert store.claim(f"{group}.other", "a", "four", LONG_MS) is ClaimResult.CLAIMED


def test_the_same_token_may_claim_again(store: Store, group: str) -> None:
    assert store.claim(group, "a", "one", SHORT_MS) is ClaimResult.CLAIMED
    assert store.claim(group, "a", "one", LONG_MS) is ClaimResult.CLAIMED


def test_a_released_id_can_be_claimed_by_others(store: Store, group: str) -> None:
    store.claim(group, "a", "one", LONG_MS)
    store.release(group, "a", "somebody else")
    assert isinstance(store.claim(group, "a", "two", LONG_MS), ClaimedElsewhere)
    store.release(group, "a", "one")
    assert store.claim(group, "a", "two", LONG_MS) is ClaimResult.CLAIMED


def test_what_is_done_cannot_be_released(store: Store, group: str) -> None:
    store.claim(group, "a", "one", LONG_MS)
    store.complete(group, "a", "one", LONG_MS)
    store.release(group, "a", "one")
    assert store.claim(group, "a", "two", LONG_MS) is ClaimResult.DONE


def test_a_lease_ends_and_whoever_had_it_cannot_complete(store: Store, group: str) -> None:
    store.claim(group, "a", "dead", SHORT_MS)
    until(lambda: store.claim(group, "a", "next", LONG_MS) is ClaimResult.CLAIMED, "the lease ends")
    assert not store.complete(group, "a", "dead", LONG_MS)
    assert not store.extend(group, "a", "dead", LONG_MS)
    store.release(group, "a", "dead")
    assert isinstance(store.claim(group, "a", "third", LONG_MS), ClaimedElsewhere)
    assert store.complete(group, "a", "next", LONG_MS)


def test_a_lease_that_is_extended_does_not_end(store: Store, group: str) -> None:
    store.claim(group, "a", "one", 1000)
    assert store.extend(group, "a", "one", LONG_MS)
    busy = store.claim(group, "a", "two", LONG_MS)
    assert isinstance(busy, ClaimedElsewhere)
    assert busy.lease_left_ms > 1000


def test_the_window_ends(store: Store, group: str) -> None:
    store.claim(group, "a", "one", LONG_MS)
    assert store.complete(group, "a", "one", SHORT_MS)
    until(lambda: store.claim(group, "a", "two", LONG_MS) is ClaimResult.CLAIMED, "the window ends")


def test_an_id_may_be_long_and_of_any_letters(store: Store, group: str) -> None:
    for biz_id in ("x" * 10_000, "käse 🧀 'quoted' \\ \x00", ""):
        assert store.claim(group, biz_id, "one", LONG_MS) is ClaimResult.CLAIMED
        assert isinstance(store.claim(group, biz_id, "two", LONG_MS), ClaimedElsewhere)


def test_of_many_who_claim_at_once_one_gets_it(store: Store, group: str) -> None:
    ids, takers = [f"id-{number}" for number in range(20)], 6
    together = threading.Barrier(takers)

    def claim_all(token: str) -> list[str]:
        together.wait(PATIENCE_S)
        return [biz_id for biz_id in ids if store.claim(group, biz_id, token, LONG_MS) is ClaimResult.CLAIMED]

    with ThreadPoolExecutor(takers) as pool:
        claimed = [biz_id for got in pool.map(claim_all, map(str, range(takers))) for biz_id in got]
    assert sorted(claimed) == sorted(ids)


def test_old_rows_are_deleted(mariadb: MariaDbProcess, group: str) -> None:
    store = penstock.SqlStore(mariadb.url, table="cleaned")
    for number in range(5):
        store.claim(group, f"{number}", "one", 1)
    store.claim(group, "kept", "one", LONG_MS)
    deleted = 0

    def is_clean() -> bool:
        nonlocal deleted
        deleted += store.clean()
        return deleted == 5

    until(is_clean, "what is over is deleted")
    assert isinstance(store.claim(group, "kept", "two", LONG_MS), ClaimedElsewhere)
    store.close()


def test_duplicates_are_handled_once(broker: BrokerProcess, admin: AdminClient, topic: str, store: Store) -> None:
    create(admin, topic, 3)
    heard = Heard()
    with penstock.Client(broker.kafka) as client:

        @client.subscribe(
            topic, group=topic, concurrency=8, retries=SOON, dedup=penstock.Dedup(store), from_beginning=True
        )
        def handle(message: penstock.Message) -> None:
            if message.value == b"fails" and message.attempt == 1:
                raise ValueError("its id is free again")
            heard(message)

        for _ in range(3):
            for number in range(10):
                client.send_soon(topic, f"{number}", biz_id=f"order-{number}")
        client.send(topic, b"fails", biz_id="order-f")
        client.send(topic, b"no id")
        client.send(topic, b"no id")
        with running(client):
            until(lambda: len(heard.values) >= 13, "each id is handled")
            wait_until_committed(broker.kafka, topic, topic, 3)
            wait_until_committed(broker.kafka, topic, retry_topic(topic, topic), 3)
    assert heard.counts == {**{f"{number}".encode(): 1 for number in range(10)}, b"fails": 1, b"no id": 2}


def test_an_id_that_is_being_handled_waits_and_loses_no_attempt(
    broker: BrokerProcess, admin: AdminClient, topic: str
) -> None:
    create(admin, topic)
    store, heard = penstock.MemoryStore(), Heard()
    assert store.claim(topic, "order", "another consumer", LONG_MS) is ClaimResult.CLAIMED
    # One attempt only: being busy must not use it up.
    once = penstock.Retries(attempts=1)
    with penstock.Client(broker.kafka) as client:
        client.subscribe(topic, heard, group=topic, retries=once, dedup=penstock.Dedup(store), from_beginning=True)
        client.send(topic, b"x", biz_id="order")
        with running(client):
            wait_until_committed(broker.kafka, topic, topic)
            assert not heard.values
            store.release(topic, "order", "another consumer")
            (message,) = heard.wait(1, 120)
    assert message.attempt == 1


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_consumer_killed_after_its_work_was_marked_as_done_does_not_do_it_twice(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    broker = new_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic, 2)
    where = (
        {"sql": f"sqlite:///{tmp_path / 'dedup.db'}"}
        if kind == "sqlite"
        else {"redis": request.getfixturevalue("redis_server").url}
    )
    common = {"bootstrap": broker.kafka, "topic": topic, "group": topic, "concurrency": 1, **where}
    with penstock.Client(broker.kafka) as client, Subscribers(tmp_path, **common) as subscribers:
        ids = [f"{number}" for number in range(12)]
        for _ in range(2):
            for number in ids:
                client.send_soon(topic, number, biz_id=number)
        client.flush()
        # Each dies right after its first message is marked as done, before its offset is committed.
        for _ in range(3):
            subscribers.start("one", instance="same", die="handled")
            subscribers.wait_for_death("one")
        subscribers.start("one", instance="same")
        until(lambda: set(subscribers.values("handled")) == set(ids), "everything is handled")
        wait_until_committed(broker.kafka, topic, topic, 2)
        subscribers.stop("one")
    repeated = {value: count for value, count in Counter(subscribers.values("handled")).items() if count > 1}
    assert not repeated


def test_the_claim_of_a_process_that_died_at_work_ends_with_its_deadline(
    new_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    broker = new_broker(SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, topic)
    url = f"sqlite:///{tmp_path / 'dedup.db'}"
    common = {"bootstrap": broker.kafka, "topic": topic, "group": topic, "sql": url, "deadline": "1s"}
    with penstock.Client(broker.kafka) as client, Subscribers(tmp_path, **common) as subscribers:
        client.send(topic, b"x", biz_id="x")
        subscribers.start("one", instance="same", die="handling")
        subscribers.wait_for_death("one")
        store = penstock.SqlStore(url)
        assert isinstance(store.claim(topic, "x", "me", 1), ClaimedElsewhere)
        store.close()
        subscribers.start("one", instance="same")
        until(lambda: len(subscribers.values("handled")) == 2, "it is handled again")
        subscribers.stop("one")
