"""Ranges of a table that are read before a consumer asks for them."""

from __future__ import annotations

import asyncio

from penstock.sql.database import Database
from penstock.storage.contract import Log
from penstock.storage.sql.log import SqlLog
from penstock.storage.sql.read_ahead import _FRESH_MS
from support.logs import AT, EPOCH, TOPIC_ID, append, append_batch, batch, content, seen, settings
from support.waiting import PATIENCE_S

from .conftest import OpenEngine

RECORDS = 60
RANGE_BYTES = 200
"""A few records."""


async def filled(open_engine: OpenEngine) -> SqlLog:
    """A log that has nothing in memory."""
    engine = await open_engine(cache_bytes=0)
    log = await engine.create(AT, TOPIC_ID, settings())
    await log.take_over(EPOCH)
    await append(log, *[b"old %03d" % number for number in range(RECORDS)])
    assert isinstance(log, SqlLog)
    return log


async def read(log: Log, offset: int, max_bytes: int = RANGE_BYTES) -> list[bytes | None]:
    return [record.value for record in seen(content(await log.read(offset, max_bytes, log.end_offset)))]


async def read_in_sequence(log: SqlLog) -> int:
    """Reads until more was read ahead; gives the offset to go on from."""
    offset = 0
    async with asyncio.timeout(PATIENCE_S):
        while not log.env.held_reads.holds(log, offset):
            assert offset < RECORDS // 2, "nothing was read ahead"
            offset += len(await read(log, offset))
            await settled(log)
    return offset


async def settled(log: SqlLog) -> None:
    """What is being read ahead is there."""
    while log._tasks:
        await asyncio.wait(list(log._tasks))


async def overwrite(database: Database, log: SqlLog) -> None:
    name = database.dialect.quoted(log.table.name)
    await database.run(lambda connection: connection.change(f"UPDATE {name} SET body = ?", b"new"))


async def test_the_next_range_is_there_before_it_is_asked_for(open_engine: OpenEngine, database: Database) -> None:
    log = await filled(open_engine)
    offset = await read_in_sequence(log)
    await overwrite(database, log)
    values = await read(log, offset)
    assert values == [b"old %03d" % number for number in range(offset, offset + len(values))]


async def test_a_reader_gets_every_record_once_and_in_order(open_engine: OpenEngine) -> None:
    log = await filled(open_engine)
    readers: list[list[bytes | None]] = [[], [], []]
    async with asyncio.timeout(PATIENCE_S):
        while any(len(found) < RECORDS for found in readers):
            for found in readers:
                found += await read(log, len(found), RANGE_BYTES) if len(found) < RECORDS else []
    assert readers == [[b"old %03d" % number for number in range(RECORDS)]] * 3


async def test_a_range_that_nobody_came_for_is_read_anew(open_engine: OpenEngine, database: Database) -> None:
    log = await filled(open_engine)
    offset = await read_in_sequence(log)
    await overwrite(database, log)
    await asyncio.sleep(2 * _FRESH_MS / 1000)
    assert not log.env.held_reads.holds(log, offset)
    assert set(await read(log, offset)) == {b"new"}


async def test_a_reader_with_less_room_gets_less(open_engine: OpenEngine) -> None:
    log = await filled(open_engine)
    offset = await read_in_sequence(log)
    assert await read(log, offset, 1) == [b"old %03d" % offset]


async def test_what_lies_behind_a_cut_is_not_told_afterwards(open_engine: OpenEngine) -> None:
    log = await filled(open_engine)
    offset = await read_in_sequence(log)
    await log.begin_at(offset)
    await append(log, b"another")
    assert await read(log, offset) == [b"another"]


async def test_a_log_that_is_read_again_gives_what_the_database_has(
    open_engine: OpenEngine, database: Database
) -> None:
    log = await filled(open_engine)
    offset = await read_in_sequence(log)
    await overwrite(database, log)
    other = await (await open_engine()).create(AT, TOPIC_ID, settings())
    await other.take_over(EPOCH + 1)
    await append_batch(other, memoryview(batch(b"of another leader")), EPOCH + 1)
    await log.take_over(EPOCH + 2)
    assert set(await read(log, offset)) == {b"new"}
