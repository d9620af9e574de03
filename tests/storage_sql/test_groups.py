"""Logs in a database group whose primary goes away: reads go on, appends fail at once, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition, companion_of
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups, GroupAddresses
from penstock.storage.companions import companion_config
from penstock.storage.contract import ReplicaBehindError
from penstock.storage.sql import offset_table
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from penstock.storage.sql.table_names import offset_table_of
from support.logs import ALL, AT, NOW_MS, TOPIC_ID, append, append_batch, batch, read_all, settings
from support.replicated import MariaDbPair, Pair
from support.waiting import until

from .conftest import CLUSTER

GROUP = "a"


class Side:
    """One broker's engine and groups."""

    def __init__(self, groups: DatabaseGroups, engine: SqlEngine) -> None:
        self.groups = groups
        self.engine = engine

    async def lead(self, epoch: int = 0, at: TopicPartition = AT, database: str = GROUP) -> SqlLog:
        log = await self.engine.create(at, TOPIC_ID, settings(), database)
        await log.take_over(epoch)
        assert isinstance(log, SqlLog)
        return log

    async def until_writes(self, *, are_taken: bool) -> None:
        await eventually(lambda: self.groups[GROUP].takes_writes is are_taken)


OpenSide = Callable[..., Coroutine[Any, Any, Side]]


async def eventually(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, is_so, "what the test waits for has happened")


async def values(log: SqlLog) -> list[bytes | None]:
    return [record.value for record in await read_all(log)]


async def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    database = await Database.open(DatabaseAddress.parse(url), connections=1)
    try:
        return await database.run(lambda connection: connection.execute(sql), is_read_only=True)
    finally:
        await database.close()


@pytest.fixture
def addresses(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Of a database on the primary and on the replica."""
    name = "replicated" if "replicated" in request.fixturenames else "any_pair"
    pair: Pair = request.getfixturevalue(name)
    return pair.create_database(f"test_{uuid.uuid4().hex[:12]}")


@pytest.fixture
async def open_side(addresses: tuple[str, str], tmp_path: Path) -> AsyncIterator[OpenSide]:
    """Engines with a default database of their own kind and a group of two servers; what they read is in no cache."""
    sides: list[Side] = []

    async def open_one(primary: int = 0, generation: int = 0, **named: Any) -> Side:
        default = await Database.open(DatabaseAddress.parse(f"sqlite:///{tmp_path / 'default.db'}"), connections=4)
        groups = DatabaseGroups(default)
        groups.start()
        servers = tuple(DatabaseAddress.parse(url) for url in addresses)
        groups.follow({GROUP: GroupAddresses(servers, primary, generation)})
        chosen = {"look_ms": 3_600_000, "cache_bytes": 0, **named}
        engine = SqlEngine(groups, LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER, **chosen)
        sides.append(Side(groups, engine))
        await engine.open({})
        return sides[-1]

    yield open_one
    for side in sides:
        await side.engine.close()
        await side.groups.close()


async def test_a_log_is_read_from_the_replica_while_the_primary_is_down(open_side: OpenSide, any_pair: Pair) -> None:
    side = await open_side()
    log = await side.lead()
    for number in range(5):
        await append(log, b"%d" % number)
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.primary.kill)
    assert await values(log) == [b"%d" % number for number in range(5)]
    assert (await log.find_time(0), await log.find_max_timestamp()) != (None, None)
    await side.until_writes(are_taken=False)
    with pytest.raises(ApiError) as caught:
        await append(log, b"refused")
    assert caught.value.code is Code.LEADER_NOT_AVAILABLE
    assert (log.end_offset, log.visible_end) == (5, 5)
    await asyncio.to_thread(any_pair.primary.start)
    await side.until_writes(are_taken=True)
    assert await append(log, b"5") == 5
    assert await values(log) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_what_a_replica_lacks_is_not_skipped(open_side: OpenSide, any_pair: Pair, how: str) -> None:
    side = await open_side()
    log = await side.lead()
    await append(log, b"0")
    await append(log, b"1")
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.stop_applying)
    await append(log, b"2")
    await append(log, b"3")
    await asyncio.to_thread(any_pair.until_received)
    await asyncio.to_thread(getattr(any_pair.primary, how))
    try:
        found = await log.read(0, ALL, 4)
        headers = list(found.headers())
        assert (headers[-1].next_offset, found.end_offset, log.end_offset) == (2, 2, 4)
        for asked in (2, 3):
            with pytest.raises(ReplicaBehindError):
                await log.read(asked, ALL, 4)
        with pytest.raises(ReplicaBehindError):
            await log.find_max_timestamp()
        # Its relay log has the rest.
        await asyncio.to_thread(any_pair.go_on_applying)
        await eventually(lambda: any_pair.replica.administer("select next_id from queue", _schema(side))[0][0] == 5)
        assert await values(log) == [b"0", b"1", b"2", b"3"]
    finally:
        if how == "pause":
            any_pair.primary.resume()


def _schema(side: Side) -> str:
    return side.groups[GROUP].primary.address.database


async def test_an_append_under_way_when_the_primary_freezes_is_answered_and_its_fate_found_out(
    open_side: OpenSide, any_pair: Pair
) -> None:
    side = await open_side()
    log = await side.lead()
    await append_batch(log, memoryview(batch(b"0", producer=7)), 0)
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.primary.pause)
    late = batch(b"1", producer=7, sequence=1)
    try:
        with pytest.raises((ApiError, StorageError)):
            await append_batch(log, memoryview(bytearray(late)), 0)
        assert await values(log) == [b"0"]
    finally:
        any_pair.primary.resume()
    await side.until_writes(are_taken=True)

    async def appended() -> int:
        while True:
            try:
                return (await append_batch(log, memoryview(bytearray(late)), 0)).base_offset
            except (ApiError, StorageError):
                await asyncio.sleep(0.02)

    assert await appended() == 1
    assert await values(log) == [b"0", b"1"]


async def test_a_log_that_cannot_be_taken_over_is_opened_to_be_read(open_side: OpenSide, any_pair: Pair) -> None:
    first = await open_side()
    log = await first.lead(3)
    beside = await first.engine.create(companion_of(AT), TOPIC_ID, companion_config(settings()))
    assert isinstance(beside, SqlLog) and beside.env is log.env
    for number in range(3):
        await append_batch(log, memoryview(batch(b"%d" % number, producer=7, sequence=number)), 3)
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.stop_applying)
    await append_batch(log, memoryview(batch(b"3", producer=7, sequence=3)), 3)
    await asyncio.to_thread(any_pair.primary.kill)
    second = await open_side()
    await second.until_writes(are_taken=False)
    with pytest.raises(StorageError):
        await second.lead(4)
    copy = await second.engine.open_read_only(AT, TOPIC_ID, settings(), GROUP)
    assert isinstance(copy, SqlLog)
    assert (copy.is_read_only, copy.start_offset, copy.end_offset) == (True, 0, 3)
    assert companion_of(AT) in second.engine.logs
    assert await values(copy) == [b"0", b"1", b"2"]
    assert copy.epochs.starts == ((3, 0),)
    with pytest.raises(ApiError) as caught:
        await append(copy, b"refused")
    assert caught.value.code is Code.LEADER_NOT_AVAILABLE
    assert await copy.apply_retention() == 0 and not await copy.compact()
    await asyncio.to_thread(any_pair.primary.start)
    await second.until_writes(are_taken=True)
    with pytest.raises(ApiError):
        await append(copy, b"refused still")
    taken = await second.lead(4)
    assert not taken.is_read_only
    assert await values(taken) == [b"0", b"1", b"2", b"3"]
    assert await append(taken, b"4") == 4


async def test_a_group_that_is_down_does_not_keep_others_from_their_logs(
    open_side: OpenSide, any_pair: Pair, addresses: tuple[str, str]
) -> None:
    side = await open_side()
    other = TopicPartition("other", 1)
    await append(await side.lead(), b"a")
    await append(await side.lead(at=other, database="default"), b"b")
    assert await ask(addresses[0], "SELECT table_name FROM queue") == [("orders_0",)]
    assert await ask(addresses[0], "SELECT cluster_id FROM queue_cluster") == [(CLUSTER,)]
    second = await open_side()
    strays = {stray.topic_partition: stray for stray in await second.engine.find_strays()}
    assert {at: stray.database for at, stray in strays.items()} == {AT: GROUP, other: "default"}
    await asyncio.to_thread(any_pair.primary.kill)
    await second.until_writes(are_taken=False)
    assert [stray.topic_partition for stray in await second.engine.find_strays()] == [other]
    with pytest.raises(OSError):
        await second.engine.discard(strays[AT])
    await second.engine.discard(strays[other])
    assert await second.engine.find_strays() == []
    await asyncio.to_thread(any_pair.primary.start)
    await second.until_writes(are_taken=True)
    assert [stray.topic_partition for stray in await second.engine.find_strays()] == [AT]
    await second.engine.discard(strays[AT])
    assert await ask(addresses[0], "SELECT table_name FROM queue") == []


async def test_a_log_of_a_former_primary_writes_nothing_to_the_new_one(
    open_side: OpenSide, any_pair: Pair, addresses: tuple[str, str]
) -> None:
    side = await open_side()
    log = await side.lead(0)
    await append(log, b"0")
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.promote)
    servers = tuple(DatabaseAddress.parse(url) for url in addresses)
    side.groups.follow({GROUP: GroupAddresses(servers, 1, 1)})
    with pytest.raises(ApiError) as caught:
        await append(log, b"refused")
    assert caught.value.code is Code.LEADER_NOT_AVAILABLE
    await side.until_writes(are_taken=True)
    with pytest.raises(ApiError):
        await append(log, b"refused still")
    again = await side.lead(4)
    assert await append_batch(again, memoryview(batch(b"1")), 4) == (1, 1, -1, False)
    assert await values(again) == [b"0", b"1"]
    assert await ask(addresses[1], "SELECT next_id FROM queue") == [(3,)]
    assert await ask(addresses[0], "SELECT next_id FROM queue") == [(2,)]


async def test_records_that_a_promoted_replica_lacks_become_a_gap(
    open_side: OpenSide, any_pair: Pair, addresses: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    side = await open_side()
    log = await side.lead(3)
    await append(log, b"0")
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.stop_receiving)
    await append(log, b"1")
    await append(log, b"2")
    await asyncio.to_thread(any_pair.primary.kill)
    await asyncio.to_thread(any_pair.promote)
    servers = tuple(DatabaseAddress.parse(url) for url in addresses)
    side.groups.follow({GROUP: GroupAddresses(servers, 1, 1)})
    await side.until_writes(are_taken=True)
    again = await side.lead(4)
    assert (again.end_offset, side.engine.lost_records) == (3, 2)
    said = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert len(said) == 1 and "lost records" in said[0].getMessage()
    assert await values(again) == [b"0"]
    headers = list((await again.read(1, ALL, 3)).headers())
    assert (headers[-1].next_offset, sum(header.record_count for header in headers)) == (3, 0)
    assert await append_batch(again, memoryview(batch(b"3")), 4) == (3, 3, -1, False)
    assert await values(again) == [b"0", b"3"]
    # It is said once.
    await side.lead(5)
    assert side.engine.lost_records == 2


async def test_a_former_primary_that_has_come_back_is_not_read(
    open_side: OpenSide, replicated: MariaDbPair, addresses: tuple[str, str]
) -> None:
    side = await open_side()
    log = await side.lead(3)
    await append(log, b"0")
    await asyncio.to_thread(replicated.until_equal)
    await asyncio.to_thread(replicated.stop_receiving)
    await append(log, b"lost")
    await asyncio.to_thread(replicated.primary.kill)
    await asyncio.to_thread(replicated.promote)
    servers = tuple(DatabaseAddress.parse(url) for url in addresses)
    side.groups.follow({GROUP: GroupAddresses(servers, 1, 1)})
    await side.until_writes(are_taken=True)
    again = await side.lead(4)
    await append_batch(again, memoryview(batch(b"2")), 4)
    await asyncio.to_thread(replicated.primary.start)
    former = side.groups[GROUP].servers[0]
    await eventually(lambda: not former.is_down and former.takes_writes)
    await asyncio.to_thread(replicated.replica.kill)
    await side.until_writes(are_taken=False)
    with pytest.raises(StorageError):
        await again.read(1, ALL, 3)
    # The administrator has made it read-only, and not a replica.
    replicated.primary.administer("set global read_only = on")
    await eventually(lambda: not former.takes_writes)
    with pytest.raises(ReplicaBehindError):
        await again.read(1, ALL, 3)


async def test_an_offset_that_a_group_has_committed_is_not_given_to_another_record(
    open_side: OpenSide, any_pair: Pair, addresses: tuple[str, str]
) -> None:
    first = await open_side()
    log = await first.lead(3)
    await append(log, b"0")
    await asyncio.to_thread(any_pair.until_equal)
    await asyncio.to_thread(any_pair.stop_receiving)
    await append(log, b"1", b"2", b"3")
    table = offset_table_of(AT)
    default = first.groups.default.primary.database
    await default.run_ddl(lambda connection: offset_table.create(connection, table))
    columns = ("consumer_group", "partition", "committed_offset", "known_offset")
    # The second was set by a person, and not looked at yet.
    rows = [("g", AT.partition, 3, 3), ("edited", AT.partition, 900, -1), ("another", AT.partition + 1, 50, 50)]
    await default.run(lambda connection: connection.insert(table, columns, rows))
    await asyncio.to_thread(any_pair.primary.kill)
    await asyncio.to_thread(any_pair.promote)
    # Another broker, which has known nothing of it.
    second = await open_side(1, 1)
    await second.until_writes(are_taken=True)
    again = await second.lead(4)
    assert (again.end_offset, second.engine.lost_records) == (3, 2)
    assert await append_batch(again, memoryview(batch(b"new")), 4) == (3, 3, -1, False)
    assert await values(again) == [b"0", b"new"]


async def test_with_semi_synchronous_replication_nothing_is_lost(
    open_side: OpenSide, replicated: MariaDbPair, addresses: tuple[str, str]
) -> None:
    await asyncio.to_thread(replicated.be_semi_synchronous, 60_000)
    side = await open_side()
    log = await side.lead(3)
    acknowledged: list[int] = []

    async def produce() -> None:
        with contextlib.suppress(ApiError, StorageError):
            while True:
                acknowledged.append(await append(log, b"%d" % len(acknowledged)))

    producing = asyncio.create_task(produce())
    await eventually(lambda: len(acknowledged) > 50)
    await asyncio.to_thread(replicated.primary.kill)
    await producing
    await asyncio.to_thread(replicated.until_applied)
    await asyncio.to_thread(replicated.promote)
    servers = tuple(DatabaseAddress.parse(url) for url in addresses)
    side.groups.follow({GROUP: GroupAddresses(servers, 1, 1)})
    await side.until_writes(are_taken=True)
    again = await side.lead(4)
    assert side.engine.lost_records == 0
    assert (await values(again))[: len(acknowledged)] == [b"%d" % number for number in acknowledged]
