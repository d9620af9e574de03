"""A log that goes from one database group to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ApiError, Code, CoordinationError
from penstock.ids import companion_of
from penstock.records.batch import ASIDE_BIT, PAIRED_BIT
from penstock.records.records import Record, build_batch
from penstock.sql.database import Connection, Database
from penstock.sql.groups import DatabaseGroups, GroupAddresses
from penstock.storage.companions import companion_config
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from support.logs import AT, EPOCH, NOW_MS, TOPIC_ID, append, append_batch, batch, read_all, read_batches, settings
from support.stores import NewDatabase
from support.waiting import PATIENCE_S

from .conftest import CLUSTER
from .test_restart import shown_by, story

OTHER = "other"
PAIRS = [("mariadb", "mariadb"), ("mariadb", "postgresql"), ("postgresql", "sqlite"), ("sqlite", "mariadb")]


@pytest.fixture(params=PAIRS, ids="-".join)
async def engine(request: pytest.FixtureRequest, new_database: NewDatabase) -> AsyncIterator[SqlEngine]:
    """On two database groups."""
    first, second = (DatabaseAddress.parse(new_database(kind)) for kind in request.param)
    groups = DatabaseGroups(await Database.open(first, connections=4, timeout_ms=20_000))
    groups.follow({OTHER: GroupAddresses((second,))})
    made = SqlEngine(groups, LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER, cache_bytes=0, look_ms=3_600_000)
    await made.open({})
    yield made
    await made.close()
    await groups.close()


async def lead(engine: SqlEngine, epoch: int = EPOCH, database: str = "default") -> SqlLog:
    log = await engine.create(AT, TOPIC_ID, settings(segment_bytes=1024), database)
    await log.take_over(epoch)
    assert isinstance(log, SqlLog)
    return log


async def lead_companion(engine: SqlEngine, log: SqlLog) -> SqlLog:
    """With one delayed record."""
    companion = await engine.create(companion_of(AT), TOPIC_ID, companion_config(log.config))
    await companion.take_over(log.leader_epoch)
    at = log.end_offset
    await companion.begin_at(at)
    log.sync_after(companion)
    for half, bit in ((companion, ASIDE_BIT), (log, PAIRED_BIT)):
        made = build_batch([Record(None, b"later", (), NOW_MS)], base_offset=at, leader_epoch=EPOCH, attributes=bit)
        await half.write_stamped(memoryview(made))
    await log.secure(1)
    assert isinstance(companion, SqlLog)
    return companion


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def stored_in(engine: SqlEngine, database: str) -> list[str]:
    """The names of the tables of logs that a group has."""
    env = engine._environment(database)
    found = await env.read(lambda connection: connection.execute("SELECT table_name FROM queue ORDER BY table_name"))
    return [name for (name,) in found]


async def released(engine: SqlEngine, *logs: SqlLog) -> None:
    await engine.release(*(log.topic_partition for log in logs))
    async with asyncio.timeout(PATIENCE_S):
        while engine._dropping:
            await asyncio.wait(engine._dropping)


async def test_it_arrives_with_all_that_it_has(engine: SqlEngine) -> None:
    log = await lead(engine)
    await story(log)
    await append(log, *[b"more"] * 2500)
    companion = await lead_companion(engine, log)
    await log.trim(3)
    before, beside = await shown_by(log), await read_batches(companion)
    assert await engine.move(AT, OTHER, yes)
    assert await read_all(log) == before[0], "whoever reads goes on until it is released"
    await released(engine, log, companion)
    assert await stored_in(engine, "default") == []
    assert await stored_in(engine, OTHER) == ["orders_0", "orders_0_delayed"]
    moved = await lead(engine, EPOCH + 1, OTHER)
    assert await shown_by(moved) == before
    assert moved.companion is not None and await read_batches(moved.companion) == beside
    await append(moved, b"after")
    assert (await read_all(moved))[-1].value == b"after"


async def test_its_table_has_room_in_ranges_for_all_of_it(engine: SqlEngine) -> None:
    log = await lead(engine)
    for _ in range(3):
        await append(log, *[bytes(10_000)] * 50)
    assert await engine.move(AT, OTHER, yes)
    await released(engine, log)
    moved = await lead(engine, EPOCH + 1, OTHER)
    ranges = await moved.ranges.read()
    assert bool(ranges) is moved.env.dialect.has_ranges
    if ranges:
        first, last = ranges
        assert first.end_id is not None and first.end_id > moved.end_offset and last.end_id is None
    assert len(await read_all(moved)) == 150


async def test_what_is_acknowledged_meanwhile_arrives_once(engine: SqlEngine) -> None:
    log = await lead(engine)
    await append(log, *[b"before"] * 3000)
    acknowledged: list[bytes] = []
    is_over = asyncio.Event()

    async def write() -> None:
        for number in range(10_000):
            value = b"%d" % number
            try:
                await append_batch(log, memoryview(batch(value)), EPOCH)
            except ApiError as error:
                assert error.code is Code.NOT_LEADER_OR_FOLLOWER
                return
            acknowledged.append(value)
            if is_over.is_set():
                return

    async def commit() -> bool:
        await asyncio.sleep(0.1)
        return True

    writing = asyncio.create_task(write())
    assert await engine.move(AT, OTHER, commit)
    is_over.set()
    await writing
    await released(engine, log)
    moved = await lead(engine, EPOCH + 1, OTHER)
    assert [record.value for record in await read_all(moved)] == [b"before"] * 3000 + acknowledged
    assert acknowledged


async def test_it_stays_where_it_is_if_that_is_decided(engine: SqlEngine) -> None:
    log = await lead(engine)
    await append(log, b"a")
    for _ in range(2):
        assert not await engine.move(AT, OTHER, no)
        assert await stored_in(engine, OTHER) == []
    await append(log, b"b")
    await released(engine, log)
    assert await stored_in(engine, "default") == ["orders_0"]
    assert [record.value for record in await read_all(await lead(engine))] == [b"a", b"b"]


async def test_nothing_is_dropped_and_nothing_taken_if_nobody_knows_where_it_is(engine: SqlEngine) -> None:
    log = await lead(engine)
    await append(log, b"a")

    async def fail() -> bool:
        raise CoordinationError("no answer")

    with pytest.raises(CoordinationError):
        await engine.move(AT, OTHER, fail)
    with pytest.raises(ApiError) as caught:
        await append(log, b"b")
    assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER
    await released(engine, log)
    for database in ("default", OTHER):
        assert await stored_in(engine, database) == ["orders_0"]


async def test_what_an_earlier_attempt_has_left_is_no_part_of_it(engine: SqlEngine) -> None:
    left = await lead(engine, EPOCH, OTHER)
    await append(left, b"left", b"behind", b"by somebody")
    await engine.release(AT)
    log = await lead(engine)
    await append(log, b"a")
    assert await engine.move(AT, OTHER, yes)
    await released(engine, log)
    assert [record.value for record in await read_all(await lead(engine, EPOCH + 1, OTHER))] == [b"a"]


async def test_a_move_that_is_cancelled_while_it_is_committed_ends_as_it_was_committed(engine: SqlEngine) -> None:
    log = await lead(engine)
    await append(log, b"a")
    is_committing, may_commit = asyncio.Event(), asyncio.Event()

    async def commit() -> bool:
        is_committing.set()
        await may_commit.wait()
        return True

    moving = asyncio.create_task(engine.move(AT, OTHER, commit))
    await is_committing.wait()
    moving.cancel()
    await asyncio.sleep(0)
    may_commit.set()
    assert await moving
    await released(engine, log)
    assert await stored_in(engine, "default") == []
    assert [record.value for record in await read_all(await lead(engine, EPOCH + 1, OTHER))] == [b"a"]


async def test_records_that_somebody_inserts_in_the_last_moment_are_kept(
    engine: SqlEngine, caplog: pytest.LogCaptureFixture
) -> None:
    log = await lead(engine)
    await append(log, b"a")

    def insert(connection: Connection) -> None:
        connection.change("UPDATE queue SET next_id = next_id + 1")
        connection.change("INSERT INTO orders_0 (id, body) VALUES (2, ?)", b"direct")

    async def commit() -> bool:
        await log.env.change(insert)
        return True

    assert await engine.move(AT, OTHER, commit)
    await released(engine, log)
    assert await stored_in(engine, "default") == [], "or it would be removed as a stray"
    assert await log.env.read(lambda connection: connection.execute("SELECT id FROM orders_0")) == [(1,), (2,)]
    assert "records were inserted into a table while it was being moved" in caplog.text
