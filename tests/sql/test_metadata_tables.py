"""The statements of the metadata tables, in each database."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial

import pytest

from penstock.sql.database import Connection, Database
from penstock.sql.dialects.dialect import Row
from penstock.sql.errors import Contended
from penstock.sql.migrations import migrate
from penstock.storage.sql import metadata_tables
from penstock.storage.sql.coordinator_fence import Fence
from penstock.storage.sql.metadata_tables import (
    CONSUMER,
    CONSUMER_GROUP,
    CONSUMER_GROUP_CONSUMER,
    METADATA,
    QUEUE_OFFSET,
    GroupRows,
    Table,
)
from penstock.storage.sql.schema import STORAGE

from .conftest import change, query

SHARDS = uuid.UUID(int=7)


@pytest.fixture
async def tables(database: Database) -> Database:
    await migrate(database, STORAGE)
    await migrate(database, METADATA)
    return database


def consumers(group: str, *members: str, host: str = "here", joined_at: int = 1) -> dict[Table, Sequence[Row]]:
    return {CONSUMER: [(group, member, "client", None, host, joined_at) for member in members]}


async def write(database: Database, *groups: GroupRows, epoch: int = 1) -> None:
    fence = Fence(SHARDS, dict.fromkeys((each.shard for each in groups), epoch))
    await database.run(partial(metadata_tables.write_groups, groups=groups, fence=fence))


async def read(database: Database, table: Table) -> list[Row]:
    sql = f"SELECT {database.dialect.listed(table.columns)} FROM {database.dialect.quoted(table.name)}"
    return sorted(await database.run(query(sql), is_read_only=True))


async def write_topics(database: Database, epoch: int, ids: set[str] | None, *topics: Row) -> bool:
    return await database.run(
        partial(metadata_tables.write_cluster, topics=topics, topic_ids=ids, nodes=[], controller_epoch=epoch)
    )


def topic(number: int, name: str, created_at: int = 1, settings: str = "{}") -> Row:
    return (f"id-{number}", name, 3, "sql", None, 0, settings, created_at)


async def test_the_rows_of_a_group_are_what_was_written_last(tables: Database) -> None:
    await write(tables, GroupRows(0, "a", consumers("a", "m1", "m2")), GroupRows(1, "b", consumers("b", "m1")))
    await write(tables, GroupRows(0, "a", consumers("a", "m2", "m3", host="there", joined_at=9)))
    assert await read(tables, CONSUMER) == [
        # When it joined was known before.
        ("a", "m2", "client", None, "there", 1),
        ("a", "m3", "client", None, "there", 9),
        ("b", "m1", "client", None, "here", 1),
    ]
    assert await tables.run(metadata_tables.groups_shown, is_read_only=True) == {"a", "b"}
    await write(tables, GroupRows(0, "a", {}), GroupRows(1, "b", {}))
    assert await tables.run(metadata_tables.groups_shown, is_read_only=True) == set()


async def test_every_kind_of_value_comes_back_as_it_was(tables: Database) -> None:
    settings = '{"penstock.paused": "true"}'
    rows: dict[Table, Sequence[Row]] = {
        CONSUMER_GROUP: [("gruppe ä", "classic", "consumer", "Stable", 3, None, 2, 7, settings)],
        CONSUMER_GROUP_CONSUMER: [("gruppe ä", "m'1", 3, 2)],
        QUEUE_OFFSET: [("gruppe ä", "orders", 0, None, "m'1"), ("gruppe ä", "orders", 1, 2**40, None)],
    }
    await write(tables, GroupRows(0, "gruppe ä", rows))
    for table, expected in rows.items():
        assert await read(tables, table) == expected


async def test_many_rows_go_at_once(tables: Database) -> None:
    offsets = [("a", name, index, index, None) for name in ("orders", "other") for index in range(1200)]
    await write(tables, GroupRows(0, "a", {QUEUE_OFFSET: offsets}))
    assert len(await read(tables, QUEUE_OFFSET)) == 2400
    await write(tables, GroupRows(0, "a", {QUEUE_OFFSET: offsets[600:602] + offsets[-1:]}))
    assert await read(tables, QUEUE_OFFSET) == [
        ("a", "orders", 600, 600, None),
        ("a", "orders", 601, 601, None),
        ("a", "other", 1199, 1199, None),
    ]


async def test_a_former_coordinator_changes_nothing(tables: Database) -> None:
    await write(tables, GroupRows(0, "a", consumers("a", "new")), GroupRows(1, "b", consumers("b", "old")), epoch=4)
    await write(tables, GroupRows(0, "a", consumers("a", "newest")), epoch=5)
    # Of one shard it is the former coordinator, of the other it still is the coordinator.
    await write(tables, GroupRows(0, "a", consumers("a", "old")), GroupRows(1, "b", consumers("b", "new")), epoch=4)
    await write(tables, GroupRows(0, "a", {}), epoch=4)
    assert [row[:2] for row in await read(tables, CONSUMER)] == [("a", "newest"), ("b", "new")]


async def test_topics_are_written_alone_or_all_together(tables: Database) -> None:
    assert await write_topics(tables, 1, None, topic(1, "one"), topic(2, "two"), topic(3, "three"))
    assert await write_topics(tables, 1, {"id-1", "id-2"}, topic(2, "two", 9, '{"a": "b"}'))
    expected = [topic(2, "two", 1, '{"a": "b"}'), topic(3, "three")]
    assert await read(tables, metadata_tables.TOPIC) == expected
    assert await write_topics(tables, 1, None, topic(4, "three", 5))
    assert await read(tables, metadata_tables.TOPIC) == [topic(4, "three", 5)]


async def test_a_former_controller_changes_nothing(tables: Database) -> None:
    assert await write_topics(tables, 3, None, topic(1, "one"))
    assert not await write_topics(tables, 2, None, topic(2, "two"))
    assert await read(tables, metadata_tables.TOPIC) == [topic(1, "one")]
    assert await write_topics(tables, 4, None, topic(2, "two"))
    assert await read(tables, metadata_tables.TOPIC) == [topic(2, "two")]


async def test_rows_that_a_person_holds_are_not_waited_for(tables: Database) -> None:
    if not tables.dialect.for_update:
        pytest.skip("who writes has the whole file")
    await write(tables, GroupRows(0, "a", consumers("a", "m1")), GroupRows(0, "b", consumers("b", "m1")))
    has_locked, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        change("UPDATE consumer SET host = 'elsewhere' WHERE consumer_group = 'a'")(connection)
        loop.call_soon_threadsafe(has_locked.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()

    person = asyncio.ensure_future(tables.run(hold))
    await has_locked.wait()
    with pytest.raises(Contended):
        await write(tables, GroupRows(0, "a", consumers("a", "m2")))
    # Nothing is to be changed there, or other rows are meant.
    await write(tables, GroupRows(0, "a", consumers("a", "m1")))
    await write(tables, GroupRows(0, "b", consumers("b", "m2")))
    assert not person.done()
    may_end.set()
    await person
    await write(tables, GroupRows(0, "a", consumers("a", "m1")))
    assert [row[:2] + row[4:5] for row in await read(tables, CONSUMER)] == [("a", "m1", "here"), ("b", "m2", "here")]
