"""The statements of an offset table, in each database."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial

import pytest

from penstock.ids import TopicPartition
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, SchemaChanged
from penstock.storage.sql import offset_table, schema
from penstock.storage.sql.coordinator_fence import Fence
from penstock.storage.sql.offset_table import HeldOffset, OffsetRow, SettledEdit
from penstock.storage.sql.table_names import offset_table_of

from .conftest import change

TABLE = "create_order_consumers"
SHARDS = uuid.UUID(int=7)


@pytest.fixture
async def offsets(database: Database) -> Database:
    await database.run_ddl(schema.migrate)
    await database.run_ddl(partial(offset_table.create, table=TABLE))
    return database


def at_epoch(epoch: int, *shards: int) -> Fence:
    return Fence(SHARDS, dict.fromkeys(shards or (0,), epoch))


async def write(database: Database, *held: HeldOffset, epoch: int = 1) -> None:
    fence = at_epoch(epoch, *{each.shard for each in held})
    await database.run(partial(offset_table.write, table=TABLE, offsets=held, fence=fence))


async def read(database: Database) -> list[OffsetRow]:
    return sorted(await database.run(partial(offset_table.read, table=TABLE), is_read_only=True))


def test_the_table_of_a_topic_is_called_after_it() -> None:
    assert offset_table_of(TopicPartition("create_order", 3)) == TABLE


async def test_rows_are_inserted_updated_and_deleted_together(offsets: Database) -> None:
    await write(offsets, HeldOffset(0, "a", 0, 10), HeldOffset(1, "b", 0, 20), HeldOffset(0, "a", 1, 30))
    await write(offsets, HeldOffset(0, "a", 0, 11), HeldOffset(0, "a", 1, None), HeldOffset(1, "c", 2, 5))
    assert await read(offsets) == [("a", 0, 11, 11), ("b", 0, 20, 20), ("c", 2, 5, 5)]


async def test_what_a_person_has_changed_is_left_alone_until_it_is_settled(offsets: Database) -> None:
    await write(offsets, HeldOffset(0, "a", 0, 10), HeldOffset(0, "a", 1, 10))
    await offsets.run(change(f"UPDATE {TABLE} SET committed_offset = 4 WHERE {TABLE}.partition = 1"))
    # The same as before the edit: this must not look like the edit taken back.
    await write(offsets, HeldOffset(0, "a", 0, 12), HeldOffset(0, "a", 1, 10))
    await write(offsets, HeldOffset(0, "a", 0, 12), HeldOffset(0, "a", 1, 12))
    edited = OffsetRow("a", 1, 4, 10)
    assert await offsets.run(partial(offset_table.edited, table=TABLE)) == [edited]
    settlements = [SettledEdit(0, edited, 4)]
    await offsets.run(partial(offset_table.settle, table=TABLE, settlements=settlements, fence=at_epoch(1)))
    assert await read(offsets) == [("a", 0, 12, 12), ("a", 1, 4, 4)]
    await write(offsets, HeldOffset(0, "a", 1, 5))
    assert await read(offsets) == [("a", 0, 12, 12), ("a", 1, 5, 5)]


async def test_an_edit_that_was_edited_again_is_not_settled(offsets: Database) -> None:
    await write(offsets, HeldOffset(0, "a", 0, 10))
    await offsets.run(change(f"UPDATE {TABLE} SET committed_offset = 4"))
    first = OffsetRow("a", 0, 4, 10)
    await offsets.run(change(f"UPDATE {TABLE} SET committed_offset = 6"))
    for offset in (4, None):
        settlements = [SettledEdit(0, first, offset)]
        await offsets.run(partial(offset_table.settle, table=TABLE, settlements=settlements, fence=at_epoch(1)))
    assert await read(offsets) == [("a", 0, 6, 10)]


async def test_a_row_that_a_person_inserts_is_an_edit(offsets: Database) -> None:
    quoted = offsets.dialect.quoted("partition")
    inserted = f"INSERT INTO {TABLE} (consumer_group, {quoted}, committed_offset) VALUES ('a', 2, 9)"
    await offsets.run(change(inserted))
    assert await offsets.run(partial(offset_table.edited, table=TABLE)) == [("a", 2, 9, offset_table.NO_OFFSET)]


async def test_a_former_coordinator_changes_nothing(offsets: Database) -> None:
    await write(offsets, HeldOffset(0, "a", 0, 10), HeldOffset(1, "b", 0, 10), epoch=4)
    await write(offsets, HeldOffset(0, "a", 0, 11), epoch=5)
    # Of one shard it is the former coordinator, of the other it still is the coordinator.
    held = [HeldOffset(0, "a", 0, 3), HeldOffset(0, "a", 1, 3), HeldOffset(1, "b", 0, 12)]
    await write(offsets, *held, epoch=4)
    await write(offsets, HeldOffset(0, "a", 0, None), epoch=4)
    await offsets.run(change(f"UPDATE {TABLE} SET committed_offset = 7 WHERE consumer_group = 'a'"))
    settlements = [SettledEdit(0, OffsetRow("a", 0, 7, 11), 7)]
    await offsets.run(partial(offset_table.settle, table=TABLE, settlements=settlements, fence=at_epoch(4)))
    assert await read(offsets) == [("a", 0, 7, 11), ("b", 0, 12, 12)]


async def test_a_row_that_a_person_holds_is_not_waited_for(offsets: Database) -> None:
    if not offsets.dialect.for_update:
        pytest.skip("who writes has the whole file")
    await write(offsets, HeldOffset(0, "a", 0, 10))
    has_locked, may_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        change(f"UPDATE {TABLE} SET committed_offset = 4")(connection)
        loop.call_soon_threadsafe(has_locked.set)
        asyncio.run_coroutine_threadsafe(may_end.wait(), loop).result()

    person = asyncio.ensure_future(offsets.run(hold))
    await has_locked.wait()
    settlements = [SettledEdit(0, OffsetRow("a", 0, 10, 9), 10)]
    with pytest.raises(Contended):
        await write(offsets, HeldOffset(0, "a", 0, 11))
    with pytest.raises(Contended):
        await offsets.run(partial(offset_table.settle, table=TABLE, settlements=settlements, fence=at_epoch(1)))
    assert not person.done()
    may_end.set()
    await person
    await write(offsets, HeldOffset(0, "a", 0, 11))
    assert await read(offsets) == [("a", 0, 4, 10)]


async def test_a_table_that_is_missing_is_told(offsets: Database) -> None:
    await offsets.run_ddl(lambda connection: schema.drop_table(connection, TABLE))
    with pytest.raises(SchemaChanged):
        await read(offsets)
