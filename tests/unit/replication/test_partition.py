"""What readers of a partition see while transactions come and go, and who is woken when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.errors import ApiError, Code
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.contract import Slice
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.memory import MemoryEngine
from support.leading import leading
from support.logs import ALL, AT, NOW_MS, TOPIC_ID, batch, content, open_engine, settings
from support.transactions import shown, txn_batch


class Recorder:
    """A waiter that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def grew(self, appended_bytes: int) -> None:
        self.told.append(appended_bytes)


@pytest.fixture
async def partition() -> AsyncIterator[Partition]:
    engine = MemoryEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    yield leading(await engine.create(AT, TOPIC_ID, settings()), epoch=4)
    await engine.close()


async def produce(partition: Partition, *values: bytes) -> int:
    return (await partition.append(memoryview(batch(*values)), ALL_IN_SYNC)).base_offset


async def txn_produce(partition: Partition, *values: bytes, producer: int, sequence: int = 0) -> int:
    guard = partition.log.producers.guard(producer)
    made = txn_batch(*values, producer=producer, sequence=sequence)
    return (await partition.append(memoryview(made), ALL_IN_SYNC, guard=guard)).base_offset


async def end(partition: Partition, producer: int, *, commit: bool) -> None:
    await partition.append_marker(producer, 0, committed=commit, coordinator_epoch=0)


def values(found: Slice) -> list[bytes | None]:
    assert found.aborted is not None
    return [record.value for record in shown(content(found), found.aborted)]


async def test_a_reader_of_what_is_committed_stops_where_a_transaction_is_open(partition: Partition) -> None:
    await produce(partition, b"before")
    await txn_produce(partition, b"inside", producer=1)
    await produce(partition, b"behind")
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 3)
    assert values(await partition.read(0, ALL, committed_only=True)) == [b"before"]
    found = await partition.read(1, ALL, committed_only=True)
    assert (found.size, found.aborted) == (0, [])
    assert (await partition.read(0, ALL)).aborted is None
    await end(partition, 1, commit=False)
    assert partition.last_stable_offset == partition.high_watermark == 4
    found = await partition.read(0, ALL, committed_only=True)
    assert found.aborted == [(1, 1)]
    assert values(found) == [b"before", b"behind"]


async def test_an_offset_behind_the_high_watermark_is_out_of_range_for_every_reader(partition: Partition) -> None:
    await txn_produce(partition, b"inside", producer=1)
    for committed_only in (False, True):
        with pytest.raises(ApiError) as caught:
            await partition.read(2, ALL, committed_only=committed_only)
        assert caught.value.code == Code.OFFSET_OUT_OF_RANGE


async def test_records_of_a_transaction_wake_only_those_who_want_all(partition: Partition) -> None:
    everything, committed = Recorder(), Recorder()
    partition.park(everything)
    partition.park(committed, committed_only=True)
    await txn_produce(partition, b"inside", producer=1)
    await produce(partition, b"behind")
    assert (len(everything.told), committed.told) == (2, [])
    await end(partition, 1, commit=True)
    assert len(committed.told) == 1
    assert committed.told[0] > 1 << 40, "a marker makes visible what nobody has counted"


async def test_without_transactions_all_are_told_how_much_was_appended(partition: Partition) -> None:
    everything, committed = Recorder(), Recorder()
    partition.park(everything)
    partition.park(committed, committed_only=True)
    await produce(partition, b"plain")
    await produce(partition, b"plain again")
    assert everything.told == committed.told == [len(batch(b"plain")), len(batch(b"plain again"))]
    partition.unpark(everything)
    partition.unpark(committed)
    await produce(partition, b"nobody listens")
    assert len(everything.told) == len(committed.told) == 2


async def test_a_marker_that_leaves_an_older_transaction_open_wakes_nobody(partition: Partition) -> None:
    await txn_produce(partition, b"older", producer=1)
    await txn_produce(partition, b"younger", producer=2)
    committed = Recorder()
    partition.park(committed, committed_only=True)
    await end(partition, 2, commit=True)
    assert committed.told == []
    await end(partition, 1, commit=False)
    assert len(committed.told) == 1


async def test_a_partition_that_goes_wakes_everybody(partition: Partition) -> None:
    everything, committed = Recorder(), Recorder()
    partition.park(everything)
    partition.park(committed, committed_only=True)
    partition.go()
    assert (len(everything.told), len(committed.told)) == (1, 1)


async def test_a_marker_counts_for_readers_only_when_it_is_as_safe_as_the_topic_asks(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    files = FaultyFiles(tmp_path / "data")
    engine = await open_engine(tmp_path / "data" / "logs", settings(flush_messages=1), files=files)
    partition = leading(engine.logs[AT])
    await txn_produce(partition, b"inside", producer=1)
    committed = Recorder()
    partition.park(committed, committed_only=True)
    syncing, go_on = threading.Event(), threading.Event()

    def hold(what: str, path: Path) -> None:
        if what == "sync":
            syncing.set()
            assert go_on.wait(30)

    files.on_operation = hold
    ending = asyncio.get_running_loop().create_task(end(partition, 1, commit=False))
    assert await asyncio.to_thread(syncing.wait, 30)
    assert not partition.log.producers.has_open(1, 0)
    assert (partition.last_stable_offset, committed.told) == (0, [])
    go_on.set()
    await ending
    files.on_operation = None
    assert (partition.last_stable_offset, len(committed.told)) == (2, 1)
    assert values(await partition.read(0, ALL, committed_only=True)) == []
    await engine.close()


async def test_a_partition_that_found_no_room_can_write_as_soon_as_there_is_some(tmp_path: Path) -> None:
    """Nobody may append meanwhile: too few are in sync, or the topic is quiet."""
    engine = await open_engine(tmp_path / "logs", settings())
    log = engine.logs[AT]
    log.disk_is_full = True
    assert log.has_room()
    assert leading(log).pair.can_write
    await engine.close()
