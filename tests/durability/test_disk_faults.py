"""A full disk refuses and recovers, a failed sync ends the log, and one sync serves all who wait."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.errors import ApiError, Code, DiskFullError, StorageError
from penstock.ids import TopicPartition
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import ALL, AT, append, batch, open_engine, read_all, settings

FLUSHED = settings(flush_messages=1)


async def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition did not come true")


async def faulty(tmp_path: Path, **named: object) -> tuple[SegmentedEngine, FaultyFiles]:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    return await open_engine(root / "logs", settings(**named), files=files), files


@pytest.mark.parametrize("room", [0, 1, 60, 200])
async def test_a_full_disk_refuses_the_append_and_leaves_nothing_half_written(tmp_path: Path, room: int) -> None:
    engine, files = await faulty(tmp_path)
    log = engine.logs[AT]
    await append(log, b"before", producer=1, sequence=0)
    files.run_full_after(room)
    for _ in range(3):
        with pytest.raises(DiskFullError):
            await append(log, b"x" * 500, producer=1, sequence=1)
        files.run_full_after(room)
    assert log.end_offset == 1
    assert (tmp_path / "data/logs/orders-0/00000000000000000000.log").stat().st_size == log.size_bytes
    assert [record.value for record in await read_all(log)] == [b"before"]
    files.make_room()
    assert await append(log, b"x" * 500, producer=1, sequence=1) == 1
    await engine.close()
    again = await open_engine(tmp_path / "data/logs", settings())
    assert [record.value for record in await read_all(again.logs[AT])] == [b"before", b"x" * 500]
    await again.close()


async def test_a_broker_that_finds_no_room_at_its_start_says_so_and_starts_when_there_is(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path)
    await append(engine.logs[AT], b"before")
    await engine.close()
    files.run_full_after(0)
    with pytest.raises(DiskFullError, match=r"cannot write to .*logs, so the broker does not start: .*No space left"):
        await open_engine(tmp_path / "data/logs", settings(), files=files)
    files.make_room()
    again = await open_engine(tmp_path / "data/logs", settings(), files=files)
    assert [record.value for record in await read_all(again.logs[AT])] == [b"before"]
    await again.close()


async def test_what_follows_a_batch_that_found_no_room_finds_none_either(tmp_path: Path) -> None:
    """Told that the second in flight is out of order, a client would begin a new epoch, and repeat itself."""
    engine, files = await faulty(tmp_path)
    log = engine.logs[AT]
    await append(log, b"before", producer=1, sequence=0)
    files.run_full_after(0)
    for sequence in (1, 2, 3):
        with pytest.raises(DiskFullError):
            await append(log, b"x", producer=1, sequence=sequence)
    files.make_room()
    assert await append(log, b"x", producer=1, sequence=1) == 1
    with pytest.raises(ApiError) as refused:
        await append(log, b"x", producer=1, sequence=3)
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    await engine.close()


async def test_a_disk_that_is_full_when_a_segment_is_rolled_takes_no_log_offline(tmp_path: Path) -> None:
    """Indexes, snapshots and epochs find no room either; they are written when there is some."""
    engine, files = await faulty(tmp_path, flush_messages=1, segment_bytes=1024)
    log = engine.logs[AT]
    await log.prepare_write()  # makes its files
    files.run_full_after(len(batch(b"x" * 800)) + 2)
    await append(log, b"x" * 800)
    for _ in range(5):
        with pytest.raises(DiskFullError):
            await append(log, b"y" * 800)
    assert engine.logs[AT].recovery_offset == 0, "a crash now has to read the epochs from the log"
    files.make_room()
    for number in range(5):
        await append(log, b"%d" % number * 800)
    await engine.close()
    again = await open_engine(tmp_path / "data/logs", FLUSHED)
    assert [record.offset for record in await read_all(again.logs[AT])] == list(range(6))
    assert again.logs[AT].epochs.starts == log.epochs.starts
    await again.close()


async def test_a_log_for_whose_small_files_there_was_no_room_can_be_cut_when_there_is(tmp_path: Path) -> None:
    """Nothing is appended meanwhile: a follower has to cut before it may append anything."""
    engine, files = await faulty(tmp_path, segment_bytes=1024)
    log = engine.logs[AT]
    await log.prepare_write()  # makes its files
    files.run_full_after(len(batch(b"x" * 800)) + 2)
    await append(log, b"x" * 800)
    await log.flush()
    with pytest.raises(DiskFullError):
        await log.cut(0)
    files.make_room()
    await log.cut(0)
    assert log.end_offset == 0
    await engine.close()


async def test_retention_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, segment_bytes=1024, retention_bytes=1000)
    log = engine.logs[AT]
    for _ in range(6):
        await append(log, b"x" * 800)
    await log.flush()
    files.run_full_after(0)
    with pytest.raises(StorageError):
        await log.apply_retention()
    await until(lambda: len(list((tmp_path / "data/logs/orders-0").glob("*.log"))) == 2)
    files.make_room()
    assert log.start_offset == 4
    await engine.close()


async def test_a_compaction_that_finds_no_room_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    engine, files = await faulty(
        tmp_path, segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01"
    )
    log = engine.logs[AT]
    for number in range(6):
        await append(log, b"%d" % number, b"x" * 800, keys=[b"k", b"f%d" % number])
    await log.flush()
    before = await read_all(log)
    files.run_full_after(1000)
    with pytest.raises(OSError):
        await log.compact()
    assert await read_all(log) == before
    assert not list((tmp_path / "data/logs/orders-0").glob("*.cleaned"))
    files.make_room()
    assert await log.compact()
    assert [record.value for record in await read_all(log) if record.key == b"k"] == [b"4", b"5"]
    await engine.close()


async def test_after_a_failed_sync_the_log_never_acknowledges_again(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, flush_messages=1)
    log = engine.logs[AT]
    await append(log, b"safe")
    files.fail_next_sync(errno.EIO)
    with pytest.raises(StorageError):
        await append(log, b"lost")
    for call in (
        append(log, b"more"),
        log.read(0, ALL, 1),
        log.flush(),
        log.find_time(0),
        log.find_max_timestamp(),
        log.trim(1),
    ):
        with pytest.raises(StorageError):
            await call
    assert log.visible_end == 1
    await log.apply_retention()
    await engine.close()
    for seed in range(6):
        files.power_loss(seed, into=tmp_path / f"left-{seed}")
        again = await open_engine(tmp_path / f"left-{seed}" / "logs", FLUSHED)
        values = [record.value for record in await read_all(again.logs[AT])]
        assert values in ([b"safe"], [b"safe", b"lost"])
        await again.close()


async def test_all_who_share_a_failed_sync_are_told(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, flush_messages=1)
    log = engine.logs[AT]
    files.hold_syncs()
    appends = [asyncio.ensure_future(append(log, b"%d" % number)) for number in range(20)]
    await until(lambda: files.syncs_waiting)
    files.fail_next_sync()
    files.release_syncs()
    results = await asyncio.gather(*appends, return_exceptions=True)
    assert all(isinstance(result, StorageError) for result in results)
    await engine.close()


async def test_a_log_that_failed_does_not_stop_the_others(tmp_path: Path) -> None:
    other = TopicPartition("orders", 1)
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    engine = await open_engine(root / "logs", {AT: FLUSHED, other: FLUSHED}, files=files)
    files.fail_next_sync()
    with pytest.raises(StorageError):
        await append(engine.logs[AT], b"a")
    assert await append(engine.logs[other], b"b") == 0
    await engine.close()


async def test_one_sync_serves_all_who_wait(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, flush_messages=1)
    log = engine.logs[AT]
    await append(log, b"first")
    before = files.syncs
    files.hold_syncs()
    appends = [asyncio.ensure_future(append(log, b"%d" % number)) for number in range(200)]
    await until(lambda: log.end_offset == 201 and files.syncs_waiting)
    assert not any(future.done() for future in appends)
    files.release_syncs()
    assert await asyncio.gather(*appends) == list(range(1, 201))
    assert files.syncs - before <= 3
    await engine.close()


async def test_readers_do_not_see_what_is_not_flushed(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, flush_messages=1)
    log = engine.logs[AT]
    await append(log, b"flushed")
    files.hold_syncs()
    waiting = asyncio.ensure_future(append(log, b"not yet"))
    await until(lambda: files.syncs_waiting)
    assert (log.end_offset, log.visible_end) == (2, 1)
    assert [record.value for record in await read_all(log)] == [b"flushed"]
    files.release_syncs()
    await waiting
    assert log.visible_end == 2
    await engine.close()


async def test_a_repeat_waits_for_the_sync_of_the_first(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, flush_messages=1)
    log = engine.logs[AT]
    await log.prepare_write()  # makes its files
    files.hold_syncs()
    first = asyncio.ensure_future(append(log, b"a", producer=1))
    await until(lambda: files.syncs_waiting)
    repeat = asyncio.ensure_future(append(log, b"a", producer=1))
    await asyncio.sleep(0.01)
    assert not repeat.done()
    files.release_syncs()
    assert list(await asyncio.gather(first, repeat)) == [0, 0]
    await engine.close()


async def test_a_log_without_flush_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path)
    await engine.logs[AT].prepare_write()  # makes its files, for which the first append does wait
    files.hold_syncs()
    assert await append(engine.logs[AT], b"a") == 0
    files.release_syncs()
    await engine.close()


async def test_flush_messages_flushes_every_so_many(tmp_path: Path) -> None:
    engine, _ = await faulty(tmp_path, flush_messages=3)
    log = engine.logs[AT]
    flushed = []
    for _ in range(7):
        await append(log, b"a")
        flushed.append(engine.logs[AT].flushed_offset)
    assert flushed == [0, 0, 3, 3, 3, 6, 6]
    await engine.close()


async def test_flush_ms_flushes_after_a_while(tmp_path: Path) -> None:
    engine, _ = await faulty(tmp_path, flush_ms=1)
    await append(engine.logs[AT], b"a")
    await until(lambda: engine.logs[AT].flushed_offset == 1)
    await engine.close()


async def test_outstanding_bytes_come_back_to_nothing(tmp_path: Path) -> None:
    engine, files = await faulty(tmp_path, segment_bytes=4096, retention_bytes=8000)
    log = engine.logs[AT]
    for _ in range(40):
        await append(log, b"x" * 1000)
    assert engine.outstanding.bytes > 0
    files.hold_syncs()
    flushing = asyncio.ensure_future(log.flush())
    await until(lambda: files.syncs_waiting)
    for _ in range(10):
        await append(log, b"x" * 1000)
    retention = asyncio.ensure_future(log.apply_retention())
    await asyncio.sleep(0)
    files.release_syncs()
    await asyncio.gather(flushing, retention)
    await log.flush()
    assert engine.outstanding.bytes == 0
    await append(log, b"x" * 1000)
    await engine.delete(AT)
    assert engine.outstanding.bytes == 0
    await engine.close()
