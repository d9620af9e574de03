"""Two processes that make the tables of a log at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cluster.metadata import DEFAULT_DATABASE
from penstock.errors import StorageError
from penstock.ids import companion_of
from penstock.records.batch import ASIDE_BIT, PAIRED_BIT
from penstock.records.records import Record, build_batch
from penstock.replication.companion_pair import CompanionPair
from penstock.sql.database import Connection, Database
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log
from penstock.storage.sql import stored_state
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.log import SqlLog
from support.logs import AT, EPOCH, NOW_MS, TOPIC_ID, append, read_all, settings
from support.waiting import PATIENCE_S

from .conftest import OpenEngine


async def test_log_that_another_process_has_made_and_used_meanwhile_is_whole(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow one has made the row; before it makes the table, the quick one does, and appends."""
    slow, quick = await open_engine(), await open_engine()
    define = SqlEnvironment.define
    waiting = [True]

    async def define_late(self: SqlEnvironment, work: Callable[[Connection], Any]) -> Any:
        if waiting:
            waiting.clear()
            log = await quick.create(AT, TOPIC_ID, settings())
            await log.take_over(EPOCH)
            await append(log, b"first", b"second")
        return await define(self, work)

    monkeypatch.setattr(SqlEnvironment, "define", define_late)
    log = await slow.create(AT, TOPIC_ID, settings())
    await log.take_over(EPOCH + 1)
    assert [record.value for record in await read_all(log)] == [b"first", b"second"]
    assert await append(log, b"third") == 2


async def test_companion_that_an_earlier_leader_made_meanwhile_keeps_what_waits_in_it(open_engine: OpenEngine) -> None:
    """The new leader has looked for the companion, and found none, before the earlier one made it."""
    former, later = await open_engine(), await open_engine()
    main = await former.create(AT, TOPIC_ID, settings())
    await main.take_over(EPOCH)
    await append(main, b"first")
    taken = await later.create(AT, TOPIC_ID, settings())

    async def made_by(engine: SqlEngine, leader_epoch: int) -> Log:
        companion = await engine.create(companion_of(AT), TOPIC_ID, companion_config(main.config))
        await companion.take_over(leader_epoch)
        return companion

    pair = CompanionPair(main, None, lambda: made_by(former, EPOCH))
    companion = await pair.ensure()
    for log, bit in ((companion, ASIDE_BIT), (main, PAIRED_BIT)):
        half = build_batch([Record(None, b"later", (), NOW_MS)], base_offset=1, leader_epoch=EPOCH, attributes=bit)
        await log.write_stamped(memoryview(bytearray(half)))
    await main.secure(1)

    assert isinstance(taken, SqlLog)
    taken.find_companion = None
    await taken.take_over(EPOCH + 1)
    found = await CompanionPair(taken, None, lambda: made_by(later, EPOCH + 1)).ensure()
    assert (found.start_offset, found.end_offset) == (1, 2)


async def test_log_and_companion_that_are_opened_to_be_read_are_of_one_moment(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader stores a delayed batch, a half in each, after the reader has seen one of the two."""
    leader, reader = await open_engine(), await open_engine()
    main = await leader.create(AT, TOPIC_ID, settings())
    await main.take_over(EPOCH)

    async def make() -> Log:
        companion = await leader.create(companion_of(AT), TOPIC_ID, companion_config(main.config))
        await companion.take_over(EPOCH)
        return companion

    companion = await CompanionPair(main, None, make).ensure()

    async def append_halves(offset: int) -> None:
        for log, bit in ((companion, ASIDE_BIT), (main, PAIRED_BIT)):
            half = build_batch(
                [Record(None, b"later", (), NOW_MS)], base_offset=offset, leader_epoch=EPOCH, attributes=bit
            )
            await log.write_stamped(memoryview(bytearray(half)))
        await main.secure(offset)

    await append_halves(0)
    loop, find_row, seen = asyncio.get_running_loop(), stored_state.find_row, []

    def find_row_late(connection: Connection, queue_id: int) -> stored_state.QueueRow | None:
        seen.append(queue_id)
        if len(seen) == 2:
            asyncio.run_coroutine_threadsafe(append_halves(1), loop).result(PATIENCE_S)
        return find_row(connection, queue_id)

    monkeypatch.setattr(stored_state, "find_row", find_row_late)
    copy = await reader.open_read_only(AT, TOPIC_ID, settings(), DEFAULT_DATABASE)
    assert len(seen) == 2
    assert main.end_offset == 2
    assert reader.logs[companion_of(AT)].end_offset == copy.end_offset == 1


async def test_table_with_rows_of_others_is_refused_and_left_alone(open_engine: OpenEngine, database: Database) -> None:
    engine = await open_engine()
    await engine.create(AT, TOPIC_ID, settings())
    await engine.release(AT)

    def as_if_forgotten(connection: Connection) -> None:
        ((table,),) = connection.execute("SELECT table_name FROM queue")
        connection.change("DELETE FROM queue")
        connection.insert(table, ("id", "body"), [(1, b"of others")])

    await database.run(as_if_forgotten)
    with pytest.raises(StorageError, match="has rows, but no log"):
        await engine.create(AT, TOPIC_ID, settings())
    assert await database.run(lambda connection: connection.execute("SELECT id FROM queue")) == []
