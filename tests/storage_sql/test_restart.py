"""What a log in a database is after another broker, or the same one again, has taken it over."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicPartition, companion_of
from penstock.records.batch import ASIDE_BIT, PAIRED_BIT, read_header, with_header
from penstock.records.records import Record, build_batch
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log, Piece
from penstock.storage.sql import writer
from penstock.storage.sql.engine import SqlEngine
from penstock.storage.sql.log import SqlLog
from penstock.storage.sql.schema import OWN_DETAILS
from support.logs import (
    ALL,
    AT,
    EPOCH,
    NOW_MS,
    TOPIC_ID,
    append,
    append_batch,
    batch,
    content,
    read_all,
    read_batches,
    seen,
    settings,
    split,
)
from support.replicas import producers_of
from support.transactions import end, read_committed, txn_append
from support.waiting import PATIENCE_S

from .conftest import OpenEngine


async def lead(engine: SqlEngine, epoch: int = EPOCH, at: TopicPartition = AT, **named: object) -> Log:
    """The log, taken over in an epoch."""
    log = await engine.create(at, TOPIC_ID, settings(**named))
    await log.take_over(epoch)
    return log


async def story(log: Log) -> None:
    """Epochs, sequences, transactions that end well, badly and not at all."""
    await append(log, b"first", b"second", at_ms=[NOW_MS, NOW_MS + 5])
    for number in range(7):
        made = batch(b"%d" % number, producer=7, sequence=number, at_ms=NOW_MS + number)
        await append_batch(log, memoryview(made), 4)
    await txn_append(log, b"long", producer=1)
    for number in range(3):
        await txn_append(log, b"in %d" % number, producer=2, epoch=number)
        await append(log, b"between", keys=[b"k"])
        await end(log, 2, commit=number % 2 == 1, epoch=number + 1, coordinator_epoch=number)
    await txn_append(log, b"open", producer=3)
    await end(log, 1, commit=False, epoch=1)
    await append(log, None, keys=[b"tombstone"])


async def shown_by(log: Log) -> tuple[object, ...]:
    """All that can be asked of a log."""
    return (
        await read_all(log),
        await read_committed(log),
        producers_of(log),
        log.epochs.starts,
        (log.start_offset, log.end_offset, log.visible_end, log.size_bytes),
        log.first_unstable_offset,
        log.aborted_transactions(0, ALL),
        await log.find_max_timestamp(),
        [await log.find_time(NOW_MS + number) for number in range(8)],
    )


async def count(database: Database, table: str) -> int:
    ((found,),) = await database.run(lambda connection: connection.execute(f"SELECT COUNT(*) FROM {table}"))
    return int(found)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_all_that_was_acknowledged_is_there_after_a_restart(open_engine: OpenEngine, cache_bytes: int) -> None:
    first = await open_engine(cache_bytes=cache_bytes)
    log = await lead(first, segment_bytes=1024)
    await story(log)
    await log.trim(1)
    expected = await shown_by(log)
    await first.close()
    again = await lead(await open_engine(cache_bytes=cache_bytes), 5, segment_bytes=1024)
    assert await shown_by(again) == expected


@pytest.mark.parametrize("end_offset", [0, 4, 12, 15, 17])
async def test_a_log_that_was_cut_stays_so(open_engine: OpenEngine, end_offset: int) -> None:
    first = await open_engine()
    log = await lead(first, segment_bytes=1024)
    await story(log)
    await log.cut(end_offset)
    expected = await shown_by(log)
    await first.close()
    again = await lead(await open_engine(), 5, segment_bytes=1024)
    assert await shown_by(again) == expected
    assert await append(again, b"next") == end_offset


async def test_segments_that_were_not_stored_are_found_out_from_the_records(open_engine: OpenEngine) -> None:
    """The first engine is not closed: it might as well have died."""
    log = await lead(await open_engine(), retention_ms=10)
    for number in range(20):
        await append(log, b"x" * 500, at_ms=NOW_MS + number)
    again = await lead(await open_engine(), 5, retention_ms=10)
    assert again.size_bytes > 20 * 500
    assert await again.find_time(NOW_MS + 13) == (13, NOW_MS + 13, EPOCH)
    assert await again.find_max_timestamp() == (19, NOW_MS + 19, EPOCH)
    again.configure(settings(retention_ms=10, retention_bytes=0))
    await again.apply_retention()
    assert (again.start_offset, again.size_bytes) == (20, 0)


async def test_nothing_is_left_of_what_was_trimmed(open_engine: OpenEngine, database: Database) -> None:
    log = await lead(await open_engine(), segment_bytes=1024, retention_ms=-1)
    await story(log)
    await log.trim(log.end_offset)
    await append_batch(log, memoryview(batch(b"x" * 500)), 9)
    await log.apply_retention()
    for table, left in {"queue_segment": 1, "queue_epoch": 2, "queue_aborted": 0}.items():
        assert await count(database, table) == left
    await first_row_is(database, log.start_offset)


async def first_row_is(database: Database, offset: int) -> None:
    """Rows go in the background."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            ((first,),) = await database.run(lambda connection: connection.execute("SELECT MIN(id) FROM orders_0"))
            if first == offset + 1:
                return
            await asyncio.sleep(0.01)


async def test_a_repeat_is_known_and_a_transaction_goes_on_after_a_restart(open_engine: OpenEngine) -> None:
    await story(await lead(await open_engine()))
    log = await lead(await open_engine(), 5)
    repeat = await append_batch(log, memoryview(batch(b"6", producer=7, sequence=6)), 5)
    assert (repeat.base_offset, repeat.is_repeat) == (8, True)
    assert log.producers.has_open(3, 0)
    offset = await txn_append(log, b"more", producer=3, sequence=1)
    await end(log, 3, commit=True, leader_epoch=5)
    assert log.first_unstable_offset is None
    assert (await read_committed(log))[-1].offset == offset


@pytest.mark.parametrize("max_bytes", [1, 150, ALL])
async def test_every_offset_can_be_read_from_the_table(open_engine: OpenEngine, max_bytes: int) -> None:
    log = await lead(await open_engine(cache_bytes=0))
    expected = []
    for number in range(30):
        values = [b"%d" % number] * (1 + number % 3)
        await append(log, *values)
        expected += values
    assert [record.value for record in await read_all(log)] == expected
    for offset in range(log.end_offset):
        found = split(content(await log.read(offset, max_bytes, log.end_offset)))
        assert read_header(found[0]).base_offset == offset
        assert len(found) == 1, "neighbours that agree are one batch"
    below = seen(content(await log.read(3, max_bytes, 5)))
    assert [record.offset for record in below] == ([3] if max_bytes == 1 else [3, 4])


async def test_offsets_without_records_hold_nobody_up(open_engine: OpenEngine) -> None:
    log = await lead(await open_engine(cache_bytes=0))
    await append(log, b"a", b"b")
    empty = bytearray(build_batch([Record(None, b"", (), NOW_MS)]))
    header = read_header(empty)._replace(base_offset=2, last_offset_delta=7, record_count=0, leader_epoch=EPOCH)
    await log.append_as_is(memoryview(with_header(header, b"")))
    assert log.end_offset == 10
    headers = [read_header(found) for found in await read_batches(log)]
    assert [(each.base_offset, each.next_offset, each.record_count) for each in headers] == [(0, 2, 2), (2, 10, 0)]
    (found,) = split(content(await log.read(5, ALL, 10)))
    assert read_header(found).next_offset == 10
    await append(log, b"c")
    assert [record.offset for record in seen(content(await log.read(4, ALL, 11)))] == [10]


async def test_large_rows_are_read_a_few_at_a_time(open_engine: OpenEngine) -> None:
    log = await lead(await open_engine(cache_bytes=0))
    await append(log, *[b"small"] * 20, b"x" * 100_000, b"y" * 100_000, b"last")
    reads: list[list[int]] = [[-1]]
    while reads[-1][-1] + 1 < log.end_offset:
        found = await log.read(reads[-1][-1] + 1, 50_000, log.end_offset)
        reads.append([record.offset for record in seen(content(found))])
    assert [offset for each in reads for offset in each] == list(range(-1, 23))
    assert all(each in reads for each in ([20], [21]))
    assert len(reads) <= 7, "small ones are read together"


async def test_a_companion_comes_back_with_its_log(open_engine: OpenEngine) -> None:
    first = await open_engine()
    log = await lead(first)
    await append(log, b"before")
    companion = await first.create(companion_of(AT), TOPIC_ID, companion_config(log.config))
    await companion.take_over(EPOCH)
    await companion.begin_at(1)
    log.sync_after(companion)
    halves = []
    for bit in (ASIDE_BIT, PAIRED_BIT):
        made = build_batch([Record(None, b"later", (), NOW_MS)], base_offset=1, leader_epoch=EPOCH, attributes=bit)
        halves.append(bytes(made))
    await companion.write_stamped(memoryview(bytearray(halves[0])))
    await log.write_stamped(memoryview(bytearray(halves[1])))
    await log.secure(1)
    assert (companion.visible_end, log.visible_end) == (2, 2)

    second = await open_engine()
    again = await lead(second, EPOCH + 1)
    beside = second.logs[companion_of(AT)]
    assert (again.end_offset, beside.start_offset, beside.end_offset) == (2, 1, 2)
    assert await read_batches(beside) == [halves[0]]
    assert await beside.pieces([Piece(1, 61, 5), Piece(7, 0, 3)]) == [halves[0][61:66], b""]
    with pytest.raises(ApiError) as caught:
        await companion.trim(2)
    assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER


async def pair_of_logs(engine: SqlEngine) -> tuple[SqlLog, SqlLog]:
    """A log and its companion."""
    log = await lead(engine)
    companion = await engine.create(companion_of(AT), TOPIC_ID, companion_config(log.config))
    await companion.take_over(EPOCH)
    log.sync_after(companion)
    assert isinstance(log, SqlLog) and isinstance(companion, SqlLog)
    return log, companion


def half(offset: int, bit: int) -> memoryview:
    made = build_batch([Record(None, b"later", (), NOW_MS)], base_offset=offset, leader_epoch=EPOCH, attributes=bit)
    return memoryview(bytearray(made))


async def test_a_half_is_refused_while_the_log_of_the_other_one_is_stale(open_engine: OpenEngine) -> None:
    """A client without a broker appended first, and the other half would not be taken: this one must not be alone."""
    engine = await open_engine()
    log, companion = await pair_of_logs(engine)
    log.taken_back([], is_fenced=False)
    with pytest.raises(ApiError) as caught:
        await companion.write_stamped(half(0, ASIDE_BIT))
    assert caught.value.code is Code.NOT_ENOUGH_REPLICAS
    assert companion.end_offset == 0
    await log.take_over(EPOCH + 1)
    await companion.write_stamped(half(0, ASIDE_BIT))
    await log.write_stamped(half(0, PAIRED_BIT))
    await log.secure(1)
    assert (companion.visible_end, log.visible_end) == (1, 1)


async def test_both_halves_are_stored_in_one_transaction_however_large_they_are(
    open_engine: OpenEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_BYTES", 1)
    log, companion = await pair_of_logs(await open_engine())
    await companion.write_stamped(half(0, ASIDE_BIT))
    await log.write_stamped(half(0, PAIRED_BIT))
    await log.secure(1)
    names = [log.row.table, companion.row.table]
    tokens = await database.run(
        lambda connection: connection.execute("SELECT token FROM queue WHERE table_name IN (?, ?)", *names)
    )
    # Each transaction leaves a token of its own.
    assert len(tokens) == 2 and len(set(tokens)) == 1


async def test_a_topic_of_the_same_name_is_another_log(open_engine: OpenEngine) -> None:
    first = await open_engine()
    await append(await lead(first), b"of the first topic")
    other = uuid.uuid4()
    log = await first.create(AT, other, settings())
    await log.take_over(0)
    assert log.end_offset == 0
    await append(log, b"of the second")
    second = await open_engine()
    strays = {(stray.topic_id, stray.topic_partition) for stray in await second.find_strays()}
    assert strays == {(TOPIC_ID, AT), (other, AT)}
    (old,) = (stray for stray in await second.find_strays() if stray.topic_id == TOPIC_ID)
    await second.discard(old)
    assert [stray.topic_id for stray in await second.find_strays()] == [other]
    found = await second.create(AT, other, settings())
    assert [record.value for record in await read_all(found)] == [b"of the second"]


async def test_a_released_log_stays_and_a_deleted_one_goes(open_engine: OpenEngine, database: Database) -> None:
    engine = await open_engine()
    await append(await lead(engine), b"a")
    await engine.release(AT)
    assert AT not in engine.logs
    assert (await lead(engine, EPOCH + 1)).end_offset == 1
    await engine.delete(AT)
    for table in ("queue", *OWN_DETAILS):
        assert await count(database, table) == 0
    assert (await lead(engine)).end_offset == 0


async def test_a_database_of_another_cluster_is_not_touched(open_engine: OpenEngine, database: Database) -> None:
    await append(await lead(await open_engine()), b"a")
    stranger = SqlEngine(DatabaseGroups(database), LogSettings(), Limits(), ManualClock(NOW_MS), "another cluster")
    with pytest.raises(StorageError, match="a cluster"):
        await stranger.open({})
