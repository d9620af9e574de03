"""A crash between any two file operations of a cut leaves the log as it was before, or as it is after."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, DiskFullError, StorageError
from penstock.ids import TopicPartition
from penstock.records.batch import read_header
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import (
    ALL,
    AT,
    NOW_MS,
    TOPIC_ID,
    append,
    append_batch,
    batch,
    open_engine,
    read_all,
    read_batches,
    settings,
)
from support.replicas import check_same, copy, producers_of
from support.steps import Steps, opened
from support.transactions import end, txn_append
from support.waiting import until

CONFIG = settings(segment_bytes=1024, index_interval_bytes=200)
FLUSHED = settings(segment_bytes=1024, index_interval_bytes=200, flush_messages=1)
COMPACTED = settings(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
PADDING = b"." * 300
SEARCH = "scanning the whole log for aborted transactions"

NewReference = Callable[[list[bytes]], Awaitable[Log]]


@pytest.fixture
async def reference() -> AsyncIterator[NewReference]:
    """A log that never saw a disk, with the batches given."""
    engine = MemoryEngine(LogSettings(), Limits(), ManualClock(NOW_MS))
    made = iter(range(1000))

    async def create(batches: list[bytes]) -> Log:
        log = await engine.create(TopicPartition("reference", next(made)), TOPIC_ID, CONFIG)
        await log.append_as_is(memoryview(b"".join(batches)))
        return log

    yield create
    await engine.close()


async def story(log: Log) -> None:
    """Epochs, sequences and transactions over many segments."""
    await txn_append(log, b"long" + PADDING, producer=1)
    for number in range(5):
        await append_batch(log, memoryview(batch(b"%d" % number + PADDING, producer=7, sequence=number)), number + 3)
        await txn_append(log, b"in" + PADDING, producer=2, epoch=number)
        await end(log, 2, commit=number % 2 == 1, epoch=number + 1)
    await end(log, 1, commit=False)
    await txn_append(log, b"open", producer=3)
    await append(log, b"last" + PADDING)


async def begun(steps: Steps, config: TopicConfig = CONFIG) -> SegmentedEngine:
    """A log whose story is on disk, and noted in the checkpoint."""
    engine = await opened(steps, config)
    engine.logs[AT].saved_high_watermark = 0
    await story(engine.logs[AT])
    await engine.logs[AT].flush()
    await engine._save(clean=False)
    return engine


async def a_sync_is_held(steps: Steps) -> None:
    await asyncio.to_thread(until, lambda: steps.files.syncs_waiting, "a sync is held")


async def follow(leader: Log, log: Log) -> None:
    """Takes what the leader has, and its word that it is not going to be cut."""
    await copy(leader, log)
    log.saved_high_watermark = log.end_offset


async def brought_back(folder: Path, leader: Log, reference: NewReference, batches: list[bytes], ends: set[int]) -> int:
    """Opens what a crash left: one of the states allowed, which goes on like any log; gives its end."""
    engine = await open_engine(folder, CONFIG)
    log = engine.logs[AT]
    assert log.end_offset in ends
    found = log.end_offset
    expected = await reference([one for one in batches if read_header(one).last_offset < found])
    await check_same(expected, log)
    await follow(leader, log)
    await check_same(leader, log)
    await engine.close()
    again = await open_engine(folder, CONFIG)
    await check_same(leader, again.logs[AT])
    assert not (folder / str(AT) / "cut.json").exists()
    await again.close()
    return found


@pytest.mark.parametrize("end_offset", [1, 9])
async def test_a_crash_at_any_step_of_a_cut(
    tmp_path: Path, reference: NewReference, end_offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    batches, before = await read_batches(log), log.end_offset
    leader = await reference(batches)
    await steps.watch(lambda: log.cut(end_offset))
    assert log.end_offset == end_offset
    await engine.close()
    found = [
        await brought_back(copied / "logs", leader, reference, batches, {before, end_offset}) for copied in steps.copies
    ]
    assert set(found) == {before, end_offset}
    assert found[-3:] == [end_offset] * 3, "a cut that has returned is not undone"
    assert SEARCH not in caplog.text
    assert "records are missing" not in caplog.text


async def test_a_crash_at_any_step_of_a_cut_and_of_the_copying_that_follows(
    tmp_path: Path, reference: NewReference
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps, FLUSHED)
    log = engine.logs[AT]
    batches = await read_batches(log)
    leader = await reference([one for one in batches if read_header(one).base_offset < 6])
    for number in range(3):
        made = batch(b"of the leader %d" % number + PADDING, producer=8, sequence=number)
        await append_batch(leader, memoryview(made), 20)
    leaders = await read_batches(leader)

    async def cut_and_copy() -> None:
        await log.cut(6)
        await copy(leader, log, 1)

    await steps.watch(cut_and_copy)
    await engine.close()
    for copied in steps.copies:
        again = await open_engine(copied / "logs", FLUSHED)
        found = again.logs[AT]
        own = await read_batches(found)
        assert own in (batches, leaders[: len(own)]), "never a mixture"
        if own == batches:
            await found.cut(6)
        await copy(leader, found)
        await check_same(leader, found)
        await again.close()


@pytest.mark.parametrize("start_offset", [0, 500])
async def test_a_crash_at_any_step_of_beginning_anew(
    tmp_path: Path, reference: NewReference, start_offset: int
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    await log.trim(4)
    batches, before = await read_batches(log), log.end_offset
    await steps.watch(lambda: log.begin_at(start_offset))
    await engine.close()
    found = []
    for copied in steps.copies:
        again = await open_engine(copied / "logs", CONFIG)
        fresh = again.logs[AT]
        found.append((fresh.start_offset, fresh.end_offset))
        if found[-1] == (4, before):
            assert await read_batches(fresh) == batches
        else:
            assert found[-1] == (start_offset, start_offset)
            assert (fresh.epochs.starts, producers_of(fresh), fresh.first_unstable_offset) == ((), {}, None)
            assert fresh.aborted_transactions(0, ALL) == []
        await fresh.begin_at(start_offset)
        assert await append(fresh, b"new") == start_offset
        await again.close()
        third = await open_engine(copied / "logs", CONFIG)
        assert [record.offset for record in await read_all(third.logs[AT])] == [start_offset]
        await third.close()
    assert len(set(found)) == 2
    assert found[-3:] == [(start_offset, start_offset)] * 3


async def test_a_crash_at_any_step_of_taking_a_batch_that_straddles_the_start(
    tmp_path: Path, reference: NewReference
) -> None:
    config = settings(flush_messages=1)
    steps = Steps(tmp_path)
    leader = await reference([])
    await append(leader, *(b"%d" % number for number in range(10)))
    await leader.trim(4)
    engine = await opened(steps, config)
    log = engine.logs[AT]
    await log.begin_at(4)
    await steps.watch(lambda: copy(leader, log))
    await engine.close()
    for copied in steps.copies:
        again = await open_engine(copied / "logs", config)
        assert again.logs[AT].start_offset == 4
        assert again.logs[AT].end_offset in (4, 10)
        await copy(leader, again.logs[AT])
        await check_same(leader, again.logs[AT])
        await again.close()


async def test_a_cut_replays_from_a_snapshot_and_not_from_the_beginning(tmp_path: Path) -> None:
    """Nothing below the high watermark is cut, so a snapshot there or below it is kept, however old it is."""
    steps = Steps(tmp_path)
    engine = await opened(steps, CONFIG)
    log = engine.logs[AT]
    for number in range(40):
        if number <= 20:
            log.saved_high_watermark = number
        await append(log, b"%d" % number + PADDING, producer=7, sequence=number)
    await log.flush()
    assert len(list((steps.root / "logs" / str(AT)).glob("*.producers"))) < 14
    for segment in engine.logs[AT].segments:
        if segment.next_offset <= 15:
            segment.file.write(70, b"unreadable")
    await log.cut(21)
    assert [entry[1].batches[-1].last_sequence for entry in log.producers.entries()] == [20]
    assert len(next(log.producers.entries())[1].batches) == 5
    await engine.close()


async def test_readers_never_see_what_is_being_cut(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log, loop = engine.logs[AT], asyncio.get_running_loop()
    kept = await read_all(log)
    kept = [record for record in kept if record.offset < 9]
    rounds: list[str] = []

    async def look() -> None:
        is_cut = log.end_offset == 9
        found = await read_all(log)
        assert found[: len(kept)] == kept
        if is_cut:
            assert found == kept
            with pytest.raises(ApiError) as caught:
                await log.read(10, ALL, 11)
            assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
            with pytest.raises(StorageError, match="being cut"):
                await append(log, b"too early")
        rounds.append("after" if is_cut else "before")

    def looked(what: str, path: Path) -> None:
        if threading.current_thread().name.startswith("sync") and path.parent.name == str(AT):
            asyncio.run_coroutine_threadsafe(look(), loop).result(30)

    steps.files.on_operation = looked
    await log.cut(9)
    steps.files.on_operation = None
    assert set(rounds) == {"before", "after"}
    assert await append(log, b"new") == 9
    await engine.close()


async def test_a_compaction_and_a_retention_under_way_are_waited_for(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await opened(steps, COMPACTED)
    log = engine.logs[AT]
    for number in range(20):
        await append(log, b"%d" % number + PADDING, keys=[b"k%d" % number])
    await log.flush()
    steps.files.hold_syncs()
    compacting = asyncio.create_task(log.compact())
    await a_sync_is_held(steps)
    cutting = asyncio.create_task(log.cut(8))
    retaining = asyncio.create_task(log.apply_retention())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not await log.compact(), "none begins meanwhile"
    steps.files.release_syncs()
    assert await compacting
    await asyncio.gather(cutting, retaining)
    assert [record.offset for record in await read_all(log)] == list(range(8))
    assert await append(log, b"new", keys=[b"k"]) == 8
    await engine.close()
    again = await open_engine(steps.root / "logs", COMPACTED)
    assert [record.offset for record in await read_all(again.logs[AT])] == list(range(9))
    await again.close()


async def test_a_stop_in_the_middle_of_a_cut_waits_for_its_end(tmp_path: Path, reference: NewReference) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    batches = await read_batches(log)
    steps.files.hold_syncs()
    cutting = asyncio.create_task(log.cut(9))
    await a_sync_is_held(steps)
    closing = asyncio.create_task(engine.close())
    for _ in range(50):
        await asyncio.sleep(0)
    steps.files.release_syncs()
    await asyncio.wait_for(closing, 30)
    await cutting
    again = await open_engine(steps.root / "logs", CONFIG)
    await check_same(await reference([one for one in batches if read_header(one).base_offset < 9]), again.logs[AT])
    await again.close()


async def test_a_cut_whose_caller_is_gone_is_brought_to_its_end(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    steps.files.hold_syncs()
    cutting = asyncio.create_task(log.cut(9))
    await a_sync_is_held(steps)
    cutting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cutting
    with pytest.raises(StorageError, match="being cut"):
        await append(log, b"too early")
    steps.files.release_syncs()
    await log.cut(5)
    assert log.end_offset == 5
    assert await append(log, b"new") == 5
    await engine.close()


async def test_a_flush_that_waits_for_what_is_cut_ends(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await opened(steps, settings(flush_messages=1))
    log = engine.logs[AT]
    await append(log, b"kept")
    steps.files.hold_syncs()
    appending = [asyncio.create_task(append(log, b"cut")) for _ in range(5)]
    await a_sync_is_held(steps)
    cutting = asyncio.create_task(log.cut(1))
    await asyncio.sleep(0)
    steps.files.release_syncs()
    await asyncio.gather(cutting, *appending)
    assert (log.end_offset, log.visible_end) == (1, 1)
    assert await append(log, b"new") == 1
    assert log.visible_end == 2
    await engine.close()


async def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, reference: NewReference) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    expected = await reference(await read_batches(log))
    steps.files.run_full_after(0)
    with pytest.raises(DiskFullError):
        await log.cut(9)
    await follow(expected, log)
    await check_same(expected, log)
    steps.files.make_room()
    assert await append(log, b"goes on") == expected.end_offset
    await log.cut(9)
    assert log.end_offset == 9
    await engine.close()


async def test_a_cut_that_cannot_be_completed_takes_the_log_offline_until_the_next_start(
    tmp_path: Path, reference: NewReference
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    batches = await read_batches(log)

    def fail(what: str, path: Path) -> None:
        if what == "truncate":
            raise OSError(errno.EIO, "the disk has gone bad")

    steps.files.on_operation = fail
    with pytest.raises(StorageError, match="was not completed"):
        await log.cut(9)
    steps.files.on_operation = None
    with pytest.raises(StorageError):
        await append(log, b"more")
    with pytest.raises(StorageError):
        await log.read(0, ALL, 1)
    await engine.close()
    again = await open_engine(steps.root / "logs", CONFIG)
    await check_same(await reference([one for one in batches if read_header(one).base_offset < 9]), again.logs[AT])
    await again.close()


def full_at(name: str, times: int | None, seen: list[str]) -> Callable[[str, Path], None]:
    """Lets the disk be full for a file, so many times; None: for good."""

    def fail(what: str, path: Path) -> None:
        if path.name.startswith(name) and (times is None or len(seen) < times):
            seen.append(what)
            raise OSError(errno.ENOSPC, "No space left on device")

    return fail


@pytest.mark.parametrize("name", ["checkpoint", "epochs"])
async def test_a_cut_without_room_to_complete_it_waits_for_room(
    tmp_path: Path, reference: NewReference, name: str
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    batches = await read_batches(log)
    seen: list[str] = []
    steps.files.on_operation = full_at(name, 2, seen)
    await log.cut(9)
    assert len(seen) == 2
    await check_same(await reference([one for one in batches if read_header(one).base_offset < 9]), log)
    assert await append(log, b"goes on") == 9
    await engine.close()
    again = await open_engine(steps.root / "logs", CONFIG)
    assert (await read_all(again.logs[AT]))[-1].value == b"goes on"
    await again.close()


async def test_a_cut_that_waits_for_room_does_not_keep_the_broker_from_stopping(
    tmp_path: Path, reference: NewReference
) -> None:
    steps = Steps(tmp_path)
    engine = await begun(steps)
    log = engine.logs[AT]
    batches = await read_batches(log)
    seen: list[str] = []
    steps.files.on_operation = full_at("epochs", None, seen)
    cutting = asyncio.create_task(log.cut(9))
    await asyncio.to_thread(until, lambda: seen, "there is no room")
    await engine.close()
    with pytest.raises(StorageError, match="was not completed"):
        await cutting
    steps.files.on_operation = None
    again = await open_engine(steps.root / "logs", CONFIG)
    await check_same(await reference([one for one in batches if read_header(one).base_offset < 9]), again.logs[AT])
    await again.close()


async def test_a_note_of_a_cut_that_is_unreadable_keeps_the_log_offline(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "logs", CONFIG)
    await story(engine.logs[AT])
    await engine.close()
    for content in (b"", b"{", b"null", b"{}", b'{"format": 2}', b'{"format": 1, "start": 0, "end": "x"}'):
        (tmp_path / "logs" / str(AT) / "cut.json").write_bytes(content)
        again = await open_engine(tmp_path / "logs", CONFIG)
        assert AT not in again.logs
        await again.close()


async def test_a_damaged_end_can_be_cut_off(tmp_path: Path, reference: NewReference) -> None:
    engine = await open_engine(tmp_path / "logs", CONFIG)
    log = engine.logs[AT]
    for number in range(30):
        await append(log, b"%d" % number + PADDING)
    batches = await read_batches(log)
    await engine.close()
    paths = sorted((tmp_path / "logs" / str(AT)).glob("*.log"))
    damaged = next(path for path in reversed(paths) if int(path.name[:20]) <= 14)
    content = bytearray(damaged.read_bytes())
    content[100:120] = content[-20:] = bytes(20)
    damaged.write_bytes(content)
    first = int(damaged.name[:20])
    again = await open_engine(tmp_path / "logs", CONFIG)
    log = again.logs[AT]
    await log.cut(first + 1)
    assert log.end_offset == first
    leader = await reference(batches)
    await copy(leader, log)
    await check_same(leader, log)
    await again.close()


# Across restarts


@pytest.mark.parametrize("clean", [True, False])
async def test_the_high_watermark_is_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    engine = await open_engine(tmp_path / "logs", CONFIG)
    for _ in range(5):
        await append(engine.logs[AT], b"a")
    assert engine.logs[AT].saved_high_watermark == -1
    engine.logs[AT].saved_high_watermark = 3
    await engine.logs[AT].flush()
    await engine._save(clean=False)
    if clean:
        await engine.close()
    again = await open_engine(tmp_path / "logs", CONFIG)
    assert again.logs[AT].saved_high_watermark == 3
    await again.close()
    if not clean:
        await engine.close()


async def test_a_high_watermark_above_what_is_left_is_the_end(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await opened(steps, CONFIG)
    await append(engine.logs[AT], b"synced")
    await engine.logs[AT].flush()
    for _ in range(5):
        await append(engine.logs[AT], b"not synced")
    engine.logs[AT].saved_high_watermark = 6
    await engine._save(clean=False)
    for seed in range(8):
        steps.files.power_loss(seed, into=tmp_path / f"dark-{seed}")
        again = await open_engine(tmp_path / f"dark-{seed}" / "logs", CONFIG)
        assert again.logs[AT].saved_high_watermark == again.logs[AT].end_offset <= 6
        await again.close()
    await engine.close()


async def test_an_epoch_that_was_lost_with_the_tail_does_not_come_back(tmp_path: Path) -> None:
    """A follower may append older epochs where the lost one began."""
    engine = await open_engine(tmp_path / "logs", CONFIG)
    log = engine.logs[AT]
    await append_batch(log, memoryview(batch(b"kept")), 3)
    await log.flush()
    await engine._save(clean=False)
    size = log.size_bytes
    await append_batch(log, memoryview(batch(b"lost")), 4)
    await log.flush()
    await engine.close()
    folder = tmp_path / "logs" / str(AT)
    (tmp_path / "logs" / "checkpoint.json").unlink()
    path = next(folder.glob("*.log"))
    path.write_bytes(path.read_bytes()[:size])
    again = await open_engine(tmp_path / "logs", CONFIG)
    assert [start.epoch for start in again.logs[AT].epochs.starts] == [3]
    for _ in range(3):
        await append_batch(again.logs[AT], memoryview(batch(b"of the leader")), 3)
    await again.close()
    third = await open_engine(tmp_path / "logs", CONFIG)
    assert [start.epoch for start in third.logs[AT].epochs.starts] == [3]
    await third.close()
