"""A partition that leads a log in a database: what clients see when writes are taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.clock import SystemClock
from penstock.cluster.metadata import PartitionImage
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import companion_of
from penstock.records.records import Record, build_batch
from penstock.replication.companion_pair import CompanionPair
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log
from penstock.storage.sql.engine import SqlEngine
from support.leading import LAG_RULES, ME, for_ever
from support.logs import AT, TOPIC_ID, batch, read_all, settings
from support.waiting import PATIENCE_S

from .conftest import CLUSTER, locked_rows

NOW_MS = SystemClock().now_ms()


@pytest.fixture
async def engine(address: str) -> AsyncIterator[SqlEngine]:
    """Gives up writes after the first attempt, which waits a second for a lock."""
    database = await Database.open(DatabaseAddress.parse(address), connections=4, timeout_ms=3000)
    made = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), SystemClock(), CLUSTER, retry_ms=0)
    await made.open({})
    yield made
    await made.close()
    await database.close()


@pytest.fixture
async def partition(engine: SqlEngine) -> AsyncIterator[Partition]:
    log = await engine.create(AT, TOPIC_ID, settings())
    await log.take_over(0)

    async def make() -> Log:
        companion = await engine.create(companion_of(AT), TOPIC_ID, companion_config(log.config))
        await companion.take_over(0)
        return companion

    delays = Delays(SystemClock())
    made = Partition(log, for_ever(), CompanionPair(log, make=make), delays, is_shared=True)
    made.lead(ME, PartitionImage(0, ME, 0, (ME,), (ME,)), frozenset({ME}), LAG_RULES)
    delays.role_changed(made)
    yield made
    await delays.close()


def delayed(value: bytes, delay: bytes) -> bytearray:
    return build_batch([Record(None, value, (("penstock-delay", delay),), NOW_MS)])


async def until_taken(partition: Partition, made: bytearray) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await partition.append(memoryview(bytearray(made)), ALL_IN_SYNC)).base_offset
            except (ApiError, StorageError):
                await asyncio.sleep(0.02)


async def values(partition: Partition, count: int) -> list[bytes | None]:
    """The values in the log, as soon as there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [record.value for record in await read_all(partition.log)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_what_is_taken_back_was_never_shown(partition: Partition, database: Database) -> None:
    await partition.append(memoryview(batch(b"before", at_ms=NOW_MS)), ALL_IN_SYNC)
    async with locked_rows(database):
        with pytest.raises(ApiError) as caught:
            await partition.append(memoryview(batch(b"lost", at_ms=NOW_MS)), ALL_IN_SYNC)
        assert caught.value.code is Code.NOT_ENOUGH_REPLICAS
        assert (partition.high_watermark, partition.log.end_offset) == (1, 1)
    assert await until_taken(partition, batch(b"after", at_ms=NOW_MS)) == 1
    assert partition.high_watermark == 2
    assert [record.value for record in await read_all(partition.log)] == [b"before", b"after"]


async def test_delayed_messages_are_taken_and_delivered_once_although_writes_are_taken_back(
    partition: Partition, database: Database
) -> None:
    assert await until_taken(partition, delayed(b"kept", b"1s")) == 0
    for _ in range(2):
        async with locked_rows(database):
            with pytest.raises((ApiError, StorageError)):
                await partition.append(memoryview(delayed(b"lost", b"1s")), ALL_IN_SYNC)
            # Long enough for what is due to be tried while nothing can be written.
            await asyncio.sleep(0.7)
    assert await until_taken(partition, delayed(b"taken later", b"1")) > 0
    assert sorted(value or b"" for value in await values(partition, 2)) == [b"kept", b"taken later"]
    await until_taken(partition, delayed(b"last", b"1"))
    assert sorted(value or b"" for value in await values(partition, 3)) == [b"kept", b"last", b"taken later"]
