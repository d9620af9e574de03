"""Offsets that are committed to Redis, and written behind to the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from penstock.brokerless.sql.store import SqlStore
from penstock.brokerless.store import FencedClaimError, GroupMember, GroupOffsets
from penstock.ids import TopicPartition
from penstock.sdk.errors import InvalidInputError
from penstock.sql.database import Connection
from support.stores import NewDatabase, RedisProcess
from support.waiting import until

TOPIC = "orders"
ZERO = TopicPartition(TOPIC, 0)
SESSION_MS = 30_000


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path / "redis").start()
    yield process
    process.kill()


@pytest.fixture
def url(new_database: NewDatabase) -> str:
    return new_database("sqlite")


@pytest.fixture
def stores(url: str, redis: RedisProcess) -> Iterator[list[SqlStore]]:
    opened = [SqlStore(url, offsets=redis.url) for _ in range(2)]
    opened[0].topics.create(TOPIC, 1)
    yield opened
    for store in opened:
        store.close()


def joined(store: SqlStore, name: str) -> tuple[int, int | None]:
    store.heartbeat("g", GroupMember(name, frozenset({TOPIC})), SESSION_MS)
    granted = store.claim("g", name, [ZERO])[ZERO]
    return granted.epoch, granted.committed


def in_database(store: SqlStore) -> list[tuple[int]]:
    def read(connection: Connection) -> list[tuple[int]]:
        return connection.execute("SELECT committed_offset FROM orders_consumers")

    return store.thread.read("default", read)


def test_offsets_reach_the_database_and_the_next_member(stores: list[SqlStore]) -> None:
    epoch, committed = joined(stores[0], "a")
    assert committed is None
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 3}, {ZERO: epoch}))
    until(lambda: in_database(stores[1]) == [(3,)], "the offset is in the database")
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 4}, {ZERO: epoch}))
    stores[0].leave("g", "a")
    assert in_database(stores[1]) == [(4,)]
    assert joined(stores[1], "b")[1] == 4


def test_a_member_goes_on_where_redis_says_if_the_other_one_died(stores: list[SqlStore], redis: RedisProcess) -> None:
    epoch, _ = joined(stores[0], "a")
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 3}, {ZERO: epoch}))
    until(lambda: in_database(stores[1]) == [(3,)], "the offset is in the database")
    # Redis has what a member has committed that died before it was written behind.
    until(lambda: entry(redis).endswith(b":3"), "Redis knows what the database has")
    client = Redis.from_url(redis.url)
    client.hset(client.keys("penstock:offsets:*")[0], "orders/0", entry(redis).replace(b":3:", b":7:"))
    by_hand(stores[1], "UPDATE direct_member SET expires_at = 0")
    assert joined(stores[1], "b")[1] == 7


def entry(redis: RedisProcess) -> bytes:
    with Redis.from_url(redis.url) as client:
        return bytes(client.hget(client.keys("penstock:offsets:*")[0], "orders/0"))


def test_a_late_member_is_fenced_by_redis(stores: list[SqlStore]) -> None:
    late, _ = joined(stores[0], "a")
    by_hand(stores[1], "UPDATE direct_member SET expires_at = 0")
    joined(stores[1], "b")
    with pytest.raises(FencedClaimError):
        stores[0].commit(GroupOffsets("g", "a", {ZERO: 1}, {ZERO: late}))


def test_an_offset_that_a_person_sets_counts_for_more_than_redis(stores: list[SqlStore]) -> None:
    epoch, _ = joined(stores[0], "a")
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 5}, {ZERO: epoch}))
    until(lambda: in_database(stores[1]) == [(5,)], "the offset is in the database")
    by_hand(stores[1], "UPDATE orders_consumers SET committed_offset = 2")
    assert ZERO not in stores[0].heartbeat("g", GroupMember("a", frozenset({TOPIC})), SESSION_MS).claims
    assert joined(stores[0], "a")[1] == 2


def test_without_redis_offsets_go_to_the_database(stores: list[SqlStore], redis: RedisProcess) -> None:
    epoch, _ = joined(stores[0], "a")
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 3}, {ZERO: epoch}))
    redis.kill()
    stores[0].commit(GroupOffsets("g", "a", {ZERO: 4}, {ZERO: epoch}))
    assert in_database(stores[1]) == [(4,)]
    stores[0].leave("g", "a")
    assert joined(stores[1], "b")[1] == 4


def test_an_address_that_is_not_of_redis_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="offsets is the address of a Redis"):
        SqlStore(url, offsets="localhost:6379")


def by_hand(store: SqlStore, sql: str) -> None:
    def change(connection: Connection) -> None:
        connection.change(sql)

    store.thread.change("default", change)
