"""Retention drops ranges of a log's table where the database can do that, and deletes rows in steps elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.ids import companion_of
from penstock.records.batch import ASIDE_BIT, PAIRED_BIT
from penstock.records.records import Record, build_batch
from penstock.sql.database import Database
from penstock.sql.dialects.dialect import TableRange
from penstock.storage.companions import companion_config
from penstock.storage.sql import table_ranges
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from support.logs import AT, EPOCH, NOW_MS, TOPIC_ID, append, read_all, settings
from support.stores import SERVERS, NewDatabase

from .conftest import OpenEngine

RANGE_BYTES = 2 << 20
BODY = bytes(10_000)
RECORDS = 50
"""Of one batch: half a megabyte."""


@pytest.fixture(params=SERVERS)
def address(request: pytest.FixtureRequest, new_database: NewDatabase) -> str:
    return new_database(request.param)


async def lead(engine: SqlEngine, epoch: int = EPOCH, **named: object) -> SqlLog:
    log = await engine.create(AT, TOPIC_ID, settings(**named))
    await log.take_over(epoch)
    assert isinstance(log, SqlLog)
    return log


async def fill(log: SqlLog, batches: int) -> None:
    """Appends batches, one after the other, each when ranges are as they should be."""
    for _ in range(batches):
        await append(log, *[BODY] * RECORDS, keys=[b"key"] * RECORDS)
        await idle(log)


async def idle(log: SqlLog) -> None:
    """Nothing is done in the background any more."""
    while log._tasks:
        await asyncio.wait(list(log._tasks))


async def ranges_of(database: Database, log: SqlLog) -> list[TableRange]:
    name = log.table.name
    return await database.run(lambda connection: connection.dialect.ranges_of(name, connection.execute))


async def ids(database: Database, table: str) -> list[int]:
    found = await database.run(lambda connection: connection.execute(f"SELECT id FROM {table} ORDER BY id"))
    return [row_id for (row_id,) in found]


async def test_a_log_gets_a_range_before_it_needs_it(open_engine: OpenEngine, database: Database) -> None:
    log = await lead(await open_engine(range_bytes=RANGE_BYTES))
    assert [end for _, end in await ranges_of(database, log)] == [None]
    await append(log, b"little")
    await idle(log)
    assert [end for _, end in await ranges_of(database, log)] == [None]
    for _ in range(12):
        await fill(log, 1)
        *others, last = [end for _, end in await ranges_of(database, log)]
        bounded = [end for end in others if end is not None]
        assert last is None and bounded == sorted(bounded) and len(bounded) == len(others)
        assert log.size_bytes < 1 << 20 or bounded[-1] > log.end_offset + 1
    assert len(bounded) >= 3
    assert [record.offset for record in await read_all(log)] == list(range(log.end_offset))


async def test_ranges_below_the_start_are_dropped(open_engine: OpenEngine, database: Database) -> None:
    first = await open_engine(range_bytes=RANGE_BYTES, cache_bytes=0)
    log = await lead(first)
    await fill(log, 12)
    before = await ranges_of(database, log)
    first_end = before[0].end_id
    assert first_end is not None
    await log.trim(first_end + 9)
    await idle(log)
    assert await ranges_of(database, log) == before[1:]
    # Few rows of the next range lie below the start, so they are deleted.
    assert await ids(database, log.table.name) == list(range(first_end + 10, log.end_offset + 1))
    expected = await read_all(log)
    assert expected[0].offset == first_end + 9
    await first.close()
    again = await lead(await open_engine(range_bytes=RANGE_BYTES, cache_bytes=0), EPOCH + 1)
    assert await read_all(again) == expected
    await again.trim(again.end_offset)
    await fill(again, 6)
    assert [record.offset for record in await read_all(again)] == list(range(again.start_offset, again.end_offset))


async def test_many_rows_wait_for_their_range(
    open_engine: OpenEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.sql.trimming._DELETED_ROWS", 20)
    log = await lead(await open_engine(range_bytes=RANGE_BYTES))
    await fill(log, 12)
    await log.trim(20)
    await idle(log)
    assert await ids(database, log.table.name) == list(range(21, log.end_offset + 1))
    await log.trim(41)
    await idle(log)
    assert await ids(database, log.table.name) == list(range(21, log.end_offset + 1))
    assert (await read_all(log))[0].offset == 41
    end_id = (await ranges_of(database, log))[0].end_id
    assert end_id is not None
    await log.trim(end_id - 1)
    await idle(log)
    assert await ids(database, log.table.name) == list(range(end_id, log.end_offset + 1))


async def test_appends_go_on_while_somebody_uses_the_table(
    open_engine: OpenEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_ranges, "_FIRST_PAUSE_MS", 0)
    log = await lead(await open_engine(range_bytes=RANGE_BYTES))
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    is_used = asyncio.Event()
    name = log.table.name

    def use(connection: Any) -> None:
        connection.execute(f"SELECT id FROM {name} ORDER BY id")
        loop.call_soon_threadsafe(is_used.set)
        asyncio.run_coroutine_threadsafe(is_over.wait(), loop).result()

    using = asyncio.create_task(database.run(use))
    await is_used.wait()
    try:
        for _ in range(6):
            await append(log, *[BODY] * RECORDS)
        assert log.committed_end == 6 * RECORDS
    finally:
        is_over.set()
        await using
    await idle(log)
    # What went to the last range meanwhile is moved out of it.
    await fill(log, 1)
    *bounded, _ = await ranges_of(database, log)
    assert bounded and bounded[-1].end_id is not None and bounded[-1].end_id > log.end_offset
    assert [record.offset for record in await read_all(log)] == list(range(log.end_offset))


async def test_a_last_range_with_much_in_it_stays_as_it_is(
    open_engine: OpenEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_ranges, "_FIRST_PAUSE_MS", 0)
    monkeypatch.setattr(table_ranges, "_MOVED_BYTES", 3 << 20)
    log = await lead(await open_engine(range_bytes=RANGE_BYTES))
    await fill(log, 4)
    before = await ranges_of(database, log)
    assert len(before) > 1
    with monkeypatch.context() as patched:
        patched.setattr(type(database.dialect), "add_range", _refused)
        await fill(log, 14)
    await fill(log, 3)
    assert await ranges_of(database, log) == before
    # Retention deletes its rows, and then there are ranges again.
    await log.trim(log.end_offset)
    await idle(log)
    assert await ids(database, log.table.name) == []
    await fill(log, 6)
    *_, bounded, _ = await ranges_of(database, log)
    assert bounded.end_id is not None and bounded.end_id > log.end_offset


async def test_a_companion_has_ranges_too(open_engine: OpenEngine, database: Database) -> None:
    engine = await open_engine(range_bytes=RANGE_BYTES)
    log = await lead(engine)
    companion = await engine.create(companion_of(AT), TOPIC_ID, companion_config(log.config))
    await companion.take_over(EPOCH)
    assert isinstance(companion, SqlLog)
    log.sync_after(companion)
    for _ in range(12):
        at = log.end_offset
        for half, bit in ((companion, ASIDE_BIT), (log, PAIRED_BIT)):
            records = [Record(None, BODY, (), NOW_MS)] * RECORDS
            made = build_batch(records, base_offset=at, leader_epoch=EPOCH, attributes=bit)
            await half.write_stamped(memoryview(made))
        await log.secure(1)
        await idle(companion)
    before = await ranges_of(database, companion)
    first_end = before[0].end_id
    assert len(before) > 2 and first_end is not None
    # The batch that reaches over the end of the first range is still needed, and keeps it.
    start = (first_end // RECORDS) * RECORDS
    assert start < first_end - 1
    await companion.trim(first_end)
    await idle(companion)
    assert await ranges_of(database, companion) == before
    assert await ids(database, companion.table.name) == list(range(start + 1, companion.end_offset, RECORDS))
    await companion.trim(start + RECORDS)
    await idle(companion)
    assert await ranges_of(database, companion) == before[1:]
    assert await ids(database, companion.table.name) == list(range(start + RECORDS + 1, companion.end_offset, RECORDS))


async def test_a_compacted_log_has_no_ranges(open_engine: OpenEngine, database: Database) -> None:
    log = await lead(await open_engine(range_bytes=RANGE_BYTES), cleanup_policy="compact")
    await fill(log, 3)
    assert await ranges_of(database, log) == []
    assert await log.ranges.read() == []


async def test_a_table_that_was_made_without_ranges_is_used_on(open_engine: OpenEngine, database: Database) -> None:
    first = await open_engine()
    log = await lead(first, cleanup_policy="compact")
    await first.close()
    # Before there were ranges every table was made so.
    log = await lead(await open_engine(range_bytes=RANGE_BYTES), EPOCH + 1)
    await fill(log, 4)
    assert await ranges_of(database, log) == []
    await log.trim(RECORDS)
    await idle(log)
    assert await ids(database, log.table.name) == list(range(RECORDS + 1, 4 * RECORDS + 1))


async def test_a_user_who_may_not_change_tables_can_still_append(
    open_engine: OpenEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await lead(await open_engine(range_bytes=RANGE_BYTES))
    monkeypatch.setattr(type(database.dialect), "add_range", _refused)
    await fill(log, 6)
    assert [end for _, end in await ranges_of(database, log)] == [None]
    await log.trim(RECORDS)
    await idle(log)
    assert await ids(database, log.table.name) == list(range(RECORDS + 1, 6 * RECORDS + 1))


def _refused(dialect: Any, table: str, start_id: int | None, end_id: int) -> Sequence[str]:
    return ["SELECT no_such_function()"]
