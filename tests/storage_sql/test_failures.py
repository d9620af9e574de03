"""What happens to a log when the database, another broker or somebody else gets in the way of an append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.database_address import DatabaseAddress
from penstock.errors import ApiError, Code, PenstockError, StorageError, UnsyncedError
from penstock.records.batch import read_header, with_header
from penstock.records.records import headers_of, records_block, walk
from penstock.sql.database import Connection, Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.contract import Log
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from support.locked_rows import locked_rows
from support.logs import ALL, AT, NOW_MS, TOPIC_ID, append, append_batch, batch, content, read_all, settings, split
from support.lost_commits import Lost, LostCommits
from support.replicas import producers_of
from support.stores import MariaDbProcess
from support.waiting import PATIENCE_S, until

from .conftest import CLUSTER, OpenEngine

PRODUCER = 7


async def lead(engine: SqlEngine, epoch: int = 0, **named: object) -> SqlLog:
    log = await engine.create(AT, TOPIC_ID, settings(**named))
    await log.take_over(epoch)
    assert isinstance(log, SqlLog)
    return log


async def values(log: Log) -> list[bytes | None]:
    return [record.value for record in await read_all(log)]


async def refusal(log: Log, made: bytearray, epoch: int = 0) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await append_batch(log, memoryview(made), epoch)
    return caught.value


async def until_taken(log: Log, made: Callable[[], bytearray], epoch: int = 0) -> int:
    """Appends as a client does: again and again, until it is taken."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await append_batch(log, memoryview(made()), epoch)).base_offset
            except (ApiError, StorageError) as error:
                assert not isinstance(error, ApiError) or error.code is Code.NOT_ENOUGH_REPLICAS
                await asyncio.sleep(0.01)


async def eventually(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, is_so, "what the test waits for has happened")


# Two brokers


async def test_a_broker_that_no_longer_leads_can_append_nothing(open_engine: OpenEngine) -> None:
    old = await lead(await open_engine(), 3)
    await append_batch(old, memoryview(batch(b"old", producer=PRODUCER)), 3)
    new = await lead(await open_engine(), 4)
    late = batch(b"late", producer=PRODUCER, sequence=1)
    error = await refusal(old, bytearray(late), 3)
    assert isinstance(error, ApiError) and error.code is Code.NOT_LEADER_OR_FOLLOWER
    assert (old.end_offset, old.visible_end, await values(new)) == (1, 1, [b"old"])
    error = await refusal(old, bytearray(late), 3)
    assert isinstance(error, ApiError) and error.code is Code.NOT_LEADER_OR_FOLLOWER
    assert await append_batch(new, memoryview(late), 4) == (1, 1, -1, False)
    assert await values(new) == [b"old", b"late"]
    with pytest.raises(ApiError):
        await old.take_over(3)


async def test_a_broker_that_leads_again_has_what_the_other_one_appended(open_engine: OpenEngine) -> None:
    first = await lead(await open_engine(), 3)
    await append_batch(first, memoryview(batch(b"1", producer=PRODUCER)), 3)
    second = await lead(await open_engine(), 4)
    await append_batch(second, memoryview(batch(b"2", producer=PRODUCER, sequence=1)), 4)
    await refusal(first, batch(b"lost", producer=PRODUCER, sequence=1), 3)
    await first.take_over(5)
    assert (first.end_offset, first.visible_end) == (2, 2)
    assert await values(first) == [b"1", b"2"]
    assert producers_of(first) == producers_of(second)
    assert first.epochs.starts == ((3, 0), (4, 1))
    repeat = await append_batch(first, memoryview(batch(b"2", producer=PRODUCER, sequence=1)), 5)
    assert (repeat.base_offset, repeat.is_repeat) == (1, True)
    assert await append(first, b"3") == 2


async def test_what_waits_when_another_broker_takes_over_fails_as_a_whole(
    open_engine: OpenEngine, database: Database
) -> None:
    old = await lead(await open_engine(), 3)
    await append(old, b"before")
    engine = await open_engine()
    new = await engine.create(AT, TOPIC_ID, settings())
    async with locked_rows(database):
        # All of them wait for the row; the other broker is the first who asked for it, or comes after the first group.
        appends = [asyncio.create_task(append(old, b"%d" % number)) for number in range(20)]
        taking = asyncio.create_task(new.take_over(4))
        await asyncio.sleep(0.1)
    await taking
    results = await asyncio.gather(*appends, return_exceptions=True)
    kept = [b"%d" % number for number, result in enumerate(results) if isinstance(result, int)]
    assert await values(new) == [b"before", *kept]
    assert all(isinstance(each, int | ApiError) for each in results)
    assert await append_batch(new, memoryview(batch(b"after")), 4) == (1 + len(kept), 1 + len(kept), -1, False)


@pytest.mark.parametrize("seed", range(3))
async def test_producers_lose_nothing_while_leadership_goes_back_and_forth(open_engine: OpenEngine, seed: int) -> None:
    """Each producer sends its batches to whoever leads, until it is acknowledged, as an idempotent client does."""
    engines = [await open_engine(), await open_engine()]
    leader: list[tuple[Log, int]] = [(await lead(engines[0], 0), 0)]

    async def produce(producer: int) -> None:
        for sequence in range(15):
            while True:
                log, epoch = leader[0]
                made = batch(b"%d %d" % (producer, sequence), producer=producer, sequence=sequence)
                try:
                    await append_batch(log, memoryview(made), epoch)
                    break
                except ApiError as error:
                    assert error.code in (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS)
                    await asyncio.sleep(0.002)

    async def move() -> None:
        for epoch in range(1, 6):
            await asyncio.sleep(0.01 + 0.01 * seed)
            engine = engines[epoch % 2]
            if AT in engine.logs:
                await engine.release(AT)
            leader[0] = (await lead(engine, epoch), epoch)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(move(), *(produce(producer) for producer in range(6)))
    found = await values(leader[0][0])
    for producer in range(6):
        own = [value for value in found if value is not None and value.startswith(b"%d " % producer)]
        assert own == [b"%d %d" % (producer, sequence) for sequence in range(15)]
    assert len(found) == 6 * 15


# Somebody who uses the tables directly


async def insert_by_hand(database: Database, *, moves_end: bool = True) -> None:
    """As the documentation tells people to do it, or without the row in `queue`."""

    def work(connection: Connection) -> None:
        ((next_id,),) = connection.execute("SELECT next_id FROM queue WHERE table_name = 'orders_0'")
        if moves_end:
            connection.change("UPDATE queue SET next_id = next_id + 1 WHERE table_name = 'orders_0'")
        connection.change(
            "INSERT INTO orders_0 (id, biz_id, tags, body, send_time) VALUES (?, 'b', 'a', ?, ?)",
            next_id,
            b"by hand",
            NOW_MS,
        )

    await database.run(work)


def record_headers(found: bytes) -> list[Any]:
    header = read_header(found)
    block = records_block(memoryview(found), header)
    return [headers_of(block, record) for record in walk(block, header.record_count)]


@pytest.mark.parametrize("moves_end", [True, False])
async def test_a_row_inserted_by_hand_is_a_record_and_appends_go_on_behind_it(
    open_engine: OpenEngine, database: Database, moves_end: bool
) -> None:
    log = await lead(await open_engine())
    await append_batch(log, memoryview(batch(b"a", producer=PRODUCER)), 0)
    await insert_by_hand(database, moves_end=moves_end)
    made = batch(b"b", producer=PRODUCER, sequence=1)
    error = await refusal(log, bytearray(made))
    assert isinstance(error, ApiError) and error.code is Code.NOT_ENOUGH_REPLICAS
    assert await until_taken(log, lambda: bytearray(made)) == 2
    assert await values(log) == [b"a", b"by hand", b"b"]
    (found,) = split(content(await log.read(1, 1, 2)))
    assert record_headers(found) == [(("penstock-biz-id", b"b"), ("penstock-tags", b"a"))]
    found_by_time = await log.find_time(NOW_MS)
    assert found_by_time is not None and found_by_time.offset == 0
    again = await lead(await open_engine(), 1)
    assert await values(again) == [b"a", b"by hand", b"b"]
    assert again.size_bytes > len(b"abyhandb")


async def test_ids_that_somebody_has_reserved_are_not_given_to_others(
    open_engine: OpenEngine, database: Database
) -> None:
    log = await lead(await open_engine(cache_bytes=0))
    await append(log, b"a")
    await database.run(lambda connection: connection.change("UPDATE queue SET next_id = next_id + 5"))
    assert await until_taken(log, lambda: batch(b"b")) == 6
    assert [(record.offset, record.value) for record in await read_all(log)] == [(0, b"a"), (6, b"b")]


async def test_readers_see_rows_inserted_by_hand_although_nobody_appends(
    open_engine: OpenEngine, database: Database
) -> None:
    log = await lead(await open_engine(look_ms=20))
    await insert_by_hand(database)
    await eventually(lambda: log.visible_end == 1)
    assert await values(log) == [b"by hand"]
    assert await append(log, b"next") == 1


async def test_a_table_that_was_altered_takes_its_log_offline_and_no_other(
    open_engine: OpenEngine, database: Database
) -> None:
    engine = await open_engine()
    log = await lead(engine)
    other = await engine.create(AT._replace(partition=1), TOPIC_ID, settings())
    await append(log, b"a")
    await database.run_ddl(lambda connection: connection.change("ALTER TABLE orders_0 RENAME COLUMN headers TO header"))
    error = await refusal(log, batch(b"b"))
    assert isinstance(error, StorageError) and "orders" in str(error) and "altered" in str(error)
    assert log.failure is not None
    with pytest.raises(StorageError):
        await log.read(0, ALL, 1)
    assert await append(other, b"fine") == 0
    with pytest.raises(StorageError, match='table "orders_0"'):
        await (await open_engine()).create(AT, TOPIC_ID, settings())


async def test_a_table_of_somebody_else_is_not_taken_for_a_partitions(
    open_engine: OpenEngine, database: Database
) -> None:
    await database.run_ddl(lambda connection: connection.change("CREATE TABLE orders_0 (id BIGINT)"))
    engine = await open_engine()
    with pytest.raises(StorageError, match='table "orders_0"'):
        await engine.create(AT, TOPIC_ID, settings())


# The database


async def test_an_append_waits_for_a_lock_and_succeeds(open_engine: OpenEngine, database: Database) -> None:
    log = await lead(await open_engine(timeout_ms=1500))
    async with locked_rows(database):
        appending = asyncio.create_task(append(log, b"a"))
        # Longer than one attempt may wait for a lock.
        await asyncio.sleep(1.2)
        assert not appending.done()
        assert log.visible_end == 0
    assert await appending == 0
    assert await values(log) == [b"a"]


async def test_a_group_that_cannot_be_stored_is_taken_back_with_what_follows(
    open_engine: OpenEngine, database: Database
) -> None:
    engine = await open_engine(timeout_ms=3_000, retry_ms=0)
    log = await lead(engine)
    await append_batch(log, memoryview(batch(b"a", producer=PRODUCER)), 0)
    before = producers_of(log)
    async with locked_rows(database):
        sent = [batch(b"%d" % each, producer=PRODUCER, sequence=each) for each in (1, 2, 3)]
        results = await asyncio.gather(
            *(append_batch(log, memoryview(each), 0) for each in sent), return_exceptions=True
        )
        assert [getattr(each, "code", None) for each in results] == [Code.NOT_ENOUGH_REPLICAS] * 3
        assert (log.visible_end, await values(log)) == (1, [b"a"])
    for sequence in (1, 2, 3):
        made = batch(b"%d" % sequence, producer=PRODUCER, sequence=sequence)
        assert await until_taken(log, lambda made=made: bytearray(made)) == sequence  # type: ignore[misc]
    assert before[PRODUCER] != producers_of(log)[PRODUCER]
    assert await values(log) == [b"a", b"1", b"2", b"3"]


async def test_a_batch_that_comes_before_one_that_was_taken_back_is_asked_to_come_again(
    open_engine: OpenEngine, database: Database
) -> None:
    log = await lead(await open_engine(timeout_ms=3_000, retry_ms=0))
    await append_batch(log, memoryview(batch(b"0", producer=PRODUCER)), 0)
    async with locked_rows(database):
        await refusal(log, batch(b"1", producer=PRODUCER, sequence=1))
    await eventually(lambda: log.is_idle)
    error = await refusal(log, batch(b"2", producer=PRODUCER, sequence=2))
    assert isinstance(error, ApiError) and error.code is Code.NOT_ENOUGH_REPLICAS, "a client would begin a new epoch"
    await append_batch(log, memoryview(batch(b"1", producer=PRODUCER, sequence=1)), 0)
    error = await refusal(log, batch(b"5", producer=PRODUCER, sequence=5))
    assert isinstance(error, ApiError) and error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_batch_whose_records_cannot_be_read_is_refused_alone(open_engine: OpenEngine) -> None:
    log = await lead(await open_engine())
    header = read_header(batch(b"a", b"b"))
    broken = with_header(header, b"\x02\x00\x00")
    results = await asyncio.gather(
        append_batch(log, memoryview(broken), 0), append(log, b"fine"), return_exceptions=True
    )
    assert [getattr(each, "code", None) for each in results] == [Code.INVALID_RECORD, Code.NOT_ENOUGH_REPLICAS]
    assert await until_taken(log, lambda: batch(b"fine")) == 0
    assert await values(log) == [b"fine"]


@pytest.mark.parametrize("address", ["mariadb"], indirect=True)
async def test_a_record_that_the_database_does_not_take_is_refused_alone(
    open_engine: OpenEngine, mariadb: MariaDbProcess
) -> None:
    log = await lead(await open_engine(), max_message_bytes=20 << 20)
    ((packet_bytes,),) = mariadb.administer("select @@max_allowed_packet")
    sent = [batch(b"before"), batch(b"small", b"x" * (packet_bytes // 2)), batch(b"after")]
    results = await asyncio.gather(*(append_batch(log, memoryview(each), 0) for each in sent), return_exceptions=True)
    codes = [getattr(each, "code", None) for each in results]
    assert codes == [Code.NOT_ENOUGH_REPLICAS, Code.MESSAGE_TOO_LARGE, Code.NOT_ENOUGH_REPLICAS]
    assert await until_taken(log, lambda: batch(b"before")) == 0
    assert await values(log) == [b"before"]


async def test_rows_that_belong_to_no_log_are_not_taken_for_those_of_a_new_one(
    open_engine: OpenEngine, database: Database
) -> None:
    engine = await open_engine()
    await append(await lead(engine), b"left")
    await engine.release(AT)
    await database.run(lambda connection: connection.change("DELETE FROM queue"))
    for _ in range(2):
        with pytest.raises(StorageError, match='table "orders_0" has rows'):
            await engine.create(AT, TOPIC_ID, settings())


async def test_writers_wait_while_too_much_waits_for_the_database(open_engine: OpenEngine, database: Database) -> None:
    log = await lead(await open_engine(buffer_bytes=1000))
    async with locked_rows(database):
        appends = [asyncio.create_task(append(log, b"x" * 600)) for _ in range(10)]
        await asyncio.sleep(0.1)
        assert log.end_offset < 10
    assert sorted(await asyncio.gather(*appends)) == list(range(10))


# Lost commits, and a database that dies


@pytest.mark.parametrize("lost", list(Lost))
async def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(
    open_engine: OpenEngine, lossy: tuple[LostCommits, DatabaseAddress], lost: Lost
) -> None:
    await open_engine()
    network, through = lossy
    database = await Database.open(through, connections=2, timeout_ms=10_000)
    engine = SqlEngine(
        DatabaseGroups(database), LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER, look_ms=3_600_000
    )
    await engine.open({})
    try:
        log = await lead(engine)
        for sequence in range(3):
            network.lose(lost)
            made = batch(b"%d" % sequence, producer=PRODUCER, sequence=sequence)
            assert (await append_batch(log, memoryview(made), 0)).base_offset == sequence
        assert await values(log) == [b"0", b"1", b"2"]
        other = await lead(await open_engine(), 1)
        assert await values(other) == [b"0", b"1", b"2"]
        assert producers_of(other) == producers_of(log)
    finally:
        await engine.close()
        await database.close()


async def test_an_outcome_that_nobody_can_tell_is_said_to_be_open(
    open_engine: OpenEngine, lossy: tuple[LostCommits, DatabaseAddress]
) -> None:
    """Clients must not be told that nothing was stored: they would use the sequence numbers for something else."""
    await open_engine()
    network, through = lossy
    database = await Database.open(through, connections=2, timeout_ms=10_000)
    engine = SqlEngine(
        DatabaseGroups(database), LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER, look_ms=3_600_000, retry_ms=0
    )
    await engine.open({})
    try:
        log = await lead(engine)
        network.lose(Lost.ANSWER)
        error = await refusal(log, batch(b"0", producer=PRODUCER))
        assert isinstance(error, UnsyncedError)
        again = batch(b"0", producer=PRODUCER)
        assert await until_taken(log, lambda: bytearray(again)) == 0
        assert await values(log) == [b"0"]
    finally:
        await engine.close()
        await database.close()


@pytest.fixture
def own_mariadb(tmp_path: Path) -> Iterator[MariaDbProcess]:
    process = MariaDbProcess(tmp_path / "mariadb")
    try:
        yield process.start()
    finally:
        process.kill()


async def test_what_was_acknowledged_survives_a_kill_of_the_database_once_and_in_order(
    own_mariadb: MariaDbProcess,
) -> None:
    address = DatabaseAddress.parse(own_mariadb.create_database("killed"))
    database = await Database.open(address, connections=4, timeout_ms=5000)
    engine = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER, retry_ms=300)
    await engine.open({})
    log = await lead(engine)
    acknowledged: dict[bytes, int] = {}
    rounds = asyncio.Semaphore(0)

    async def produce(producer: int) -> None:
        for sequence in range(60):
            value = b"%d %d" % (producer, sequence)
            while True:
                try:
                    made = batch(value, producer=producer, sequence=sequence)
                    acknowledged[value] = (await append_batch(log, memoryview(made), 0)).base_offset
                    break
                except (ApiError, StorageError) as error:
                    code = error.code if isinstance(error, ApiError) else None
                    assert code in (None, Code.NOT_ENOUGH_REPLICAS), error
                    await asyncio.sleep(0.02)
            rounds.release()

    producing = asyncio.gather(*(produce(producer) for producer in range(5)))
    async with asyncio.timeout(4 * PATIENCE_S):
        for _ in range(2):
            for _ in range(60):
                await rounds.acquire()
            await asyncio.to_thread(own_mariadb.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(own_mariadb.start)
        await producing
    found = await read_all(log)
    assert {record.value: record.offset for record in found} == acknowledged
    assert len(found) == 5 * 60
    for producer in range(5):
        own = [record.value for record in found if record.value and record.value.startswith(b"%d " % producer)]
        assert own == [b"%d %d" % (producer, sequence) for sequence in range(60)]
    await engine.close()
    again = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), ManualClock(NOW_MS), CLUSTER)
    await again.open({})
    assert await read_all(await lead(again, 1)) == found
    await again.close()
    await database.close()


# Many who read


async def test_readers_who_take_long_do_not_keep_others_from_appending(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    log = await lead(engine)
    may_end = threading.Event()

    def slow(connection: Connection, replica_end: int | None) -> None:
        connection.execute("SELECT next_id FROM queue")
        may_end.wait(PATIENCE_S)

    # As many as the engine has connections, and more.
    reading = [asyncio.create_task(log.table_reads.query(slow)) for _ in range(6)]
    await asyncio.sleep(0.1)
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            assert (await append_batch(log, memoryview(batch(b"a")), log.leader_epoch)).base_offset == 0
    finally:
        may_end.set()
        await asyncio.gather(*reading)
