"""What readers of a partition see while transactions come and go, and who is woken when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.cluster.metadata import PartitionImage
from penstock.config.broker import Limits, LogSettings
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import BrokerId
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.contract import Slice
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.memory import MemoryEngine
from support.leading import LAG_RULES, ME, leading
from support.logs import ALL, AT, NOW_MS, TOPIC_ID, batch, content, open_engine, settings
from support.suspending import SuspendingEngine, UnsafeEngine, UnsafeLog
from support.transactions import shown, txn_batch
from support.waiting import PATIENCE_S

OTHER = BrokerId(2)


class Recorder:
    """A waiter that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def grew(self, appended_bytes: int) -> None:
        self.told.append(appended_bytes)


class Growth:
    """A waiter that a test waits for."""

    def __init__(self) -> None:
        self._grown = asyncio.Event()

    def grew(self, appended_bytes: int) -> None:
        self._grown.set()

    async def happened(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._grown.wait()


class HeldSync:
    """No sync of these files ends inside."""

    def __init__(self, files: FaultyFiles) -> None:
        self._files = files
        self._has_begun, self._go_on = threading.Event(), threading.Event()

    def __enter__(self) -> HeldSync:
        self._files.on_operation = self._hold
        return self

    def __exit__(self, *raised: object) -> None:
        self._go_on.set()
        self._files.on_operation = None

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._has_begun.wait, PATIENCE_S)

    def _hold(self, what: str, path: Path) -> None:
        if what == "sync":
            self._has_begun.set()
            assert self._go_on.wait(PATIENCE_S)


async def cancelled(task: asyncio.Task[object]) -> None:
    """Its request goes away."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def partition() -> AsyncIterator[Partition]:
    engine = MemoryEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    yield leading(await engine.create(AT, TOPIC_ID, settings()), epoch=4)
    await engine.close()


@pytest.fixture
async def unsafe() -> AsyncIterator[Partition]:
    """One whose log is not safe before the test says so."""
    engine = UnsafeEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    made = leading(await engine.create(AT, TOPIC_ID, settings()))
    yield made
    await engine.close()
    await made.close()


def unsafe_log(partition: Partition) -> UnsafeLog:
    assert isinstance(partition.log, UnsafeLog)
    return partition.log


async def begun(work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
    """The task of what waits until it is safe."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


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
    with HeldSync(files) as sync:
        ending = asyncio.get_running_loop().create_task(end(partition, 1, commit=False))
        await sync.begun()
        assert not partition.log.producers.has_open(1, 0)
        assert (partition.last_stable_offset, committed.told) == (0, [])
    await ending
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


@pytest.mark.parametrize("flush_messages", [1, 2])
async def test_readers_hear_of_what_is_synced_when_its_producer_has_gone(tmp_path: Path, flush_messages: int) -> None:
    (tmp_path / "data").mkdir()
    files = FaultyFiles(tmp_path / "data")
    engine = await open_engine(tmp_path / "data" / "logs", settings(flush_messages=flush_messages), files=files)
    partition, growth = leading(engine.logs[AT]), Growth()
    await produce(partition, b"first")  # for which the files are made
    partition.park(growth)
    with HeldSync(files) as sync:
        producing = asyncio.create_task(produce(partition, b"second"))
        await sync.begun()
        await cancelled(producing)
        assert partition.high_watermark == 1
    await growth.happened()
    assert partition.high_watermark == 2
    await engine.close()


async def test_readers_of_what_is_committed_hear_of_a_marker_when_its_request_has_gone(unsafe: Partition) -> None:
    producing = await begun(txn_produce(unsafe, b"inside", producer=1))
    unsafe_log(unsafe).settle()
    await producing
    committed = Growth()
    unsafe.park(committed, committed_only=True)
    await cancelled(await begun(end(unsafe, 1, commit=True)))
    unsafe_log(unsafe).settle()
    await committed.happened()
    assert unsafe.last_stable_offset == 2


async def test_what_is_safe_only_in_a_later_term_becomes_visible_then(unsafe: Partition) -> None:
    producing = await begun(produce(unsafe, b"value"))
    unsafe.follow(OTHER, 1)
    unsafe.lead(ME, PartitionImage(AT.partition, ME, 2, (ME,), (ME,)), frozenset({ME}), LAG_RULES)
    growth = Growth()
    unsafe.park(growth)
    unsafe_log(unsafe).settle()
    await growth.happened()
    assert unsafe.high_watermark == 1
    with pytest.raises(ApiError) as caught:
        await producing
    assert caught.value.code is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_what_never_is_safe_stays_invisible_and_the_next_batch_does_not(unsafe: Partition) -> None:
    for value in (b"never safe", b"safe"):
        await cancelled(await begun(produce(unsafe, value)))
    growth = Growth()
    unsafe.park(growth)
    unsafe_log(unsafe).settle(StorageError("no more"))
    await asyncio.sleep(0)
    assert unsafe.high_watermark == 0
    unsafe_log(unsafe).settle()
    await growth.happened()
    assert unsafe.high_watermark == 2


async def test_readers_hear_of_a_write_that_ended_although_it_was_cancelled() -> None:
    engine = SuspendingEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    partition, growth = leading(await engine.create(AT, TOPIC_ID, settings())), Growth()
    partition.park(growth)
    producing = await begun(produce(partition, b"value"))
    assert partition.log.end_offset == 0
    await cancelled(producing)
    await growth.happened()
    assert partition.high_watermark == 1
    await engine.close()
