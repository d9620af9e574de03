"""A partition that leads a log in a database: what clients see when writes are taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.clock import SystemClock
from penstock.cluster.metadata import PartitionImage
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.delay.delays import Delays
from penstock.errors import ApiError, Code, StorageError, UnsyncedError
from penstock.ids import companion_of
from penstock.records.records import Record, build_batch
from penstock.replication.companion_pair import CompanionPair
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from support.leading import LAG_RULES, ME, for_ever
from support.locked_rows import locked_rows
from support.logs import AT, TOPIC_ID, batch, read_all, settings
from support.lost_commits import Lost, LostCommits
from support.waiting import PATIENCE_S

from .conftest import CLUSTER

NOW_MS = SystemClock().now_ms()


@asynccontextmanager
async def opened_engine(address: DatabaseAddress, retry_ms: int = 0) -> AsyncIterator[SqlEngine]:
    """Unless told otherwise, it gives up writes after the first attempt, which waits a second for a lock."""
    database = await Database.open(address, connections=4, timeout_ms=3000)
    made = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), SystemClock(), CLUSTER, retry_ms=retry_ms)
    await made.open({})
    yield made
    await made.close()
    await database.close()


@asynccontextmanager
async def led_partition(engine: SqlEngine) -> AsyncIterator[Partition]:
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


@pytest.fixture
async def partition(address: str) -> AsyncIterator[Partition]:
    async with opened_engine(DatabaseAddress.parse(address)) as engine, led_partition(engine) as made:
        yield made


@pytest.fixture
async def patient_partition(address: str) -> AsyncIterator[Partition]:
    """One whose writes are not given up."""
    async with (
        opened_engine(DatabaseAddress.parse(address), int(1000 * PATIENCE_S)) as engine,
        led_partition(engine) as made,
    ):
        yield made


@pytest.fixture
async def lossy_partition(lossy: tuple[LostCommits, DatabaseAddress]) -> AsyncIterator[tuple[LostCommits, Partition]]:
    """One whose database is reached through a network that can lose a COMMIT."""
    network, address = lossy
    async with opened_engine(address) as engine, led_partition(engine) as made:
        yield network, made


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


async def append_unanswered(network: LostCommits, partition: Partition, made: bytearray) -> Log:
    """Appends a delayed message of which the database has both halves and has not said so; gives the companion."""
    companion = partition.pair.companion
    assert isinstance(companion, SqlLog)
    network.lose(Lost.ANSWER, f"INSERT INTO {companion.env.dialect.quoted(companion.table.name)}".encode())
    with pytest.raises(UnsyncedError):
        await partition.append(memoryview(made), ALL_IN_SYNC)
    return companion


async def append_and_go_away(partition: Partition, database: Database, made: bytearray) -> None:
    """Appends while nothing can be stored, and is cancelled before it is."""
    async with locked_rows(database):
        end_offset = partition.high_watermark
        written = await partition.write(memoryview(made), ALL_IN_SYNC)
        securing = asyncio.create_task(partition.secured(written))
        await asyncio.sleep(0)
        securing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await securing
        assert partition.high_watermark == end_offset


class Growth:
    """Waits for a partition to have so much more to read."""

    def __init__(self, missing_bytes: int = 1) -> None:
        self._missing_bytes = missing_bytes
        self.happened = asyncio.Event()

    def grew(self, appended_bytes: int) -> None:
        self._missing_bytes -= appended_bytes
        if self._missing_bytes <= 0:
            self.happened.set()


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


async def test_a_delayed_message_that_is_stored_although_no_commit_was_answered_keeps_both_halves(
    lossy_partition: tuple[LostCommits, Partition],
) -> None:
    network, partition = lossy_partition
    await until_taken(partition, delayed(b"first", b"1h"))
    companion = await append_unanswered(network, partition, delayed(b"stored", b"1h"))
    ends = set()
    async with asyncio.timeout(PATIENCE_S):
        while (2, 2) not in ends:
            # What every append does, and every delivery.
            await partition.pair.mend()
            ends.add((companion.end_offset, partition.log.end_offset))
            await asyncio.sleep(0)
    assert ends <= {(1, 1), (2, 2)}


async def test_a_delayed_message_that_is_stored_although_no_commit_was_answered_is_delivered(
    lossy_partition: tuple[LostCommits, Partition],
) -> None:
    network, partition = lossy_partition
    await until_taken(partition, delayed(b"due later", b"1500"))
    await append_unanswered(network, partition, delayed(b"due before", b"1"))
    assert await values(partition, 2) == [b"due before", b"due later"]


async def test_a_delayed_message_that_is_stored_although_no_commit_was_answered_is_delivered_without_another_append(
    lossy_partition: tuple[LostCommits, Partition],
) -> None:
    network, partition = lossy_partition
    await until_taken(partition, delayed(b"due much later", b"1h"))
    await append_unanswered(network, partition, delayed(b"due at once", b"1"))
    # Delivery sleeps for twice as long as this waits, unless the log wakes it.
    assert await values(partition, 1) == [b"due at once"]


async def test_readers_hear_of_what_is_stored_after_its_producer_went_away(
    patient_partition: Partition, database: Database
) -> None:
    growth = Growth()
    patient_partition.park(growth)
    await append_and_go_away(patient_partition, database, batch(b"value", at_ms=NOW_MS))
    async with asyncio.timeout(PATIENCE_S):
        await growth.happened.wait()
    assert patient_partition.high_watermark == 1


async def test_readers_hear_of_what_is_stored_although_no_commit_was_answered(
    lossy_partition: tuple[LostCommits, Partition],
) -> None:
    network, partition = lossy_partition
    assert isinstance(partition.log, SqlLog)
    growth = Growth()
    partition.park(growth)
    network.lose(Lost.ANSWER, f"INSERT INTO {partition.log.env.dialect.quoted(partition.log.table.name)}".encode())
    with pytest.raises(UnsyncedError):
        await partition.append(memoryview(batch(b"stored", at_ms=NOW_MS)), ALL_IN_SYNC)
    async with asyncio.timeout(PATIENCE_S):
        await growth.happened.wait()
    assert partition.high_watermark == 1


@pytest.mark.parametrize("committed_only", [False, True])
async def test_readers_hear_of_all_bytes_that_are_stored_together(
    patient_partition: Partition, database: Database, committed_only: bool
) -> None:
    made = [batch(b"%d" % number, at_ms=NOW_MS) for number in range(3)]
    growth = Growth(sum(map(len, made)))
    patient_partition.park(growth, committed_only=committed_only)
    async with locked_rows(database):
        for each in made:
            patient_partition.secure(await patient_partition.write(memoryview(each), ALL_IN_SYNC))
    async with asyncio.timeout(PATIENCE_S):
        await growth.happened.wait()
    assert patient_partition.high_watermark == 3


async def test_a_delayed_message_that_is_stored_after_its_producer_went_away_is_delivered_without_another_append(
    patient_partition: Partition, database: Database
) -> None:
    await until_taken(patient_partition, delayed(b"due much later", b"1h"))
    await append_and_go_away(patient_partition, database, delayed(b"due at once", b"1"))
    # Delivery sleeps for twice as long as this waits, unless the partition wakes it.
    assert await values(patient_partition, 1) == [b"due at once"]
