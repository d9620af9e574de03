"""Damaged bytes are never served, never hide what lies behind them, and are never cut in silence."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import ApiError, Code
from penstock.records.batch import read_header
from penstock.storage.segmented.engine import SegmentedEngine
from support.damage import flip, stored_batches
from support.logs import ALL, AT, NOW_MS, append, batch, open_engine, read_all, read_around_damage, settings

CONFIG = settings(segment_bytes=8192, index_interval_bytes=1024)
VALUE = b"x" * 200
ONE = len(batch(VALUE))
PER_SEGMENT = 8192 // ONE

FIRST, SECOND = "00000000000000000000", f"{PER_SEGMENT:020d}"


async def written(folder: Path, count: int, *, clean: bool) -> Path:
    """A folder with `count` batches of one record, as a clean stop or a crash leaves it."""
    engine = await open_engine(folder / "run", CONFIG)
    for _ in range(count):
        await append(engine.logs[AT], VALUE)
    await engine.logs[AT].flush()
    if not clean:
        shutil.copytree(folder / "run", folder / "crashed")
    await engine.close()
    return folder / "run" if clean else folder / "crashed"


def change(path: Path, position: int, *, to: Callable[[int], int] = lambda byte: byte ^ 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[position] = to(content[position])
    path.write_bytes(content)


def messages(caplog: pytest.LogCaptureFixture, level: int) -> str:
    return "\n".join(f"{r.getMessage()} {r.fields}" for r in caplog.records if r.levelno == level)  # type: ignore[attr-defined]


async def check_lost(engine: SegmentedEngine, lost: list[int], end: int) -> None:
    log = engine.logs[AT]
    found, bad = await read_around_damage(log)
    assert bad == lost
    assert [record.offset for record in found] == [offset for offset in range(end) if offset not in lost]
    assert all(record.value == VALUE for record in found)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment", [FIRST, SECOND])
@pytest.mark.parametrize(
    ("inside", "lost"),
    [(100, 1), (9, 1), (0, 1), (16, 1), (25, 1), (8, 1)],
    ids=["records", "length", "offset", "magic", "offset-delta", "length-high-byte"],
)
async def test_a_flipped_bit_costs_its_batch_and_no_other(
    tmp_path: Path, clean: bool, segment: str, inside: int, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    total = PER_SEGMENT + 20
    folder = await written(tmp_path, total, clean=clean)
    at = 7
    change(folder / "orders-0" / f"{segment}.log", at * ONE + inside)
    size = (folder / "orders-0" / f"{segment}.log").stat().st_size
    engine = await open_engine(folder, CONFIG)
    await check_lost(engine, [int(segment) + at + each for each in range(lost)], total)
    assert "damaged bytes are left in place" in messages(caplog, logging.ERROR)
    assert f"'position': {at * ONE}" in messages(caplog, logging.ERROR)
    assert (folder / "orders-0" / f"{segment}.log").stat().st_size == size, "nothing was cut"
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_several_damaged_places_in_one_segment_cost_only_themselves(tmp_path: Path, clean: bool) -> None:
    folder = await written(tmp_path, 30, clean=clean)
    for at in (3, 4, 11, 20):
        change(folder / "orders-0" / f"{FIRST}.log", at * ONE + 80)
    change(folder / "orders-0" / f"{FIRST}.log", 15 * ONE + 9)
    engine = await open_engine(folder, CONFIG)
    for _ in range(2):
        await check_lost(engine, [3, 4, 11, 15, 20], 30)
    await engine.close()


async def test_a_read_across_damage_stops_before_it(tmp_path: Path) -> None:
    folder = await written(tmp_path, 20, clean=False)
    change(folder / "orders-0" / f"{FIRST}.log", 9 * ONE + 80)
    engine = await open_engine(folder, CONFIG)
    log = engine.logs[AT]
    assert (await log.read(2, ALL, 20)).size == 7 * ONE
    with pytest.raises(ApiError) as caught:
        await log.read(9, ALL, 20)
    assert caught.value.code == Code.CORRUPT_MESSAGE
    assert (await log.read(10, ALL, 20)).size == 10 * ONE
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_with_damage_in_its_last_segment_goes_on(tmp_path: Path, clean: bool) -> None:
    folder = await written(tmp_path, 20, clean=clean)
    change(folder / "orders-0" / f"{FIRST}.log", 9 * ONE + 80)
    change(folder / "orders-0" / f"{FIRST}.log", 12 * ONE + 9)
    for life in range(3):
        engine = await open_engine(folder, CONFIG)
        end = 20 + 25 * life
        for number in range(25):
            assert await append(engine.logs[AT], VALUE) == end + number
        await check_lost(engine, [9, 12], end + 25)
        await engine.close()


async def test_offsets_of_damaged_flushed_records_at_the_end_are_never_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path, 20, clean=True)
    log_file = folder / "orders-0" / f"{FIRST}.log"
    for at in (18, 19):
        change(log_file, at * ONE + 80)
    size = log_file.stat().st_size
    engine = await open_engine(folder, CONFIG)
    assert engine.logs[AT].end_offset == 20
    assert log_file.stat().st_size == size
    assert await append(engine.logs[AT], VALUE) == 20
    await check_lost(engine, [18, 19], 21)
    assert "damaged bytes are left in place" in messages(caplog, logging.ERROR)
    await engine.close()
    again = await open_engine(folder, CONFIG)
    await check_lost(again, [18, 19], 21)
    await again.close()


@pytest.mark.parametrize("kept", [1, 30, 60, 61, 200])
async def test_a_torn_tail_is_cut_with_a_warning(tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture) -> None:
    folder = await written(tmp_path, 20, clean=False)
    log_file = folder / "orders-0" / f"{FIRST}.log"
    next_batch = batch(VALUE)
    with log_file.open("ab") as file:
        file.write(next_batch[:kept])
    engine = await open_engine(folder, CONFIG)
    assert log_file.stat().st_size == 20 * ONE
    assert f"'bytes': {kept}" in messages(caplog, logging.WARNING)
    assert "torn tail" in messages(caplog, logging.WARNING)
    await check_lost(engine, [], 20)
    assert await append(engine.logs[AT], VALUE) == 20
    await engine.close()


async def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    folder = await written(tmp_path, 20, clean=False)
    with (folder / "orders-0" / f"{FIRST}.log").open("ab") as file:
        file.write(bytes(100_000))
    engine = await open_engine(folder, CONFIG)
    assert engine.logs[AT].end_offset == 20
    await check_lost(engine, [], 20)
    await engine.close()


async def test_a_batch_inside_a_record_is_not_taken_for_one_of_the_log(tmp_path: Path) -> None:
    """Whoever keeps batches of another log as values must not find them in this one after damage."""
    inner = batch(b"inner")
    inner[0:8] = (5).to_bytes(8, "big")
    config = settings()
    engine = await open_engine(tmp_path / "logs", config)
    await append(engine.logs[AT], b"first")
    await append(engine.logs[AT], b"....." + bytes(inner) + b".....")
    await append(engine.logs[AT], b"third")
    await engine.close()
    change(tmp_path / "logs" / "orders-0" / f"{FIRST}.log", len(batch(b"first")) + 70)
    engine = await open_engine(tmp_path / "logs", config)
    found, bad = await read_around_damage(engine.logs[AT])
    assert ([record.value for record in found], bad) == ([b"first", b"third"], [1])
    await engine.close()


def evicted(path: Path) -> bool:
    """Takes a file out of the page cache; asks with mincore, because reading, even without waiting, brings pages in."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0) as mapped:
            pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(mapped)
            assert mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), pages) == 0
            del start
    return not any(page & 1 for page in pages)


async def test_cold_bytes_are_checked_again(tmp_path: Path) -> None:
    """What changes on the disk while its pages are out of memory is noticed."""
    folder = tmp_path / "logs"
    engine = await open_engine(folder, CONFIG)
    log = engine.logs[AT]
    for _ in range(PER_SEGMENT + 3):
        await append(log, VALUE)
    await log.flush()
    await read_all(log)
    change(folder / "orders-0" / f"{FIRST}.log", 5 * ONE + 80)
    if not evicted(folder / "orders-0" / f"{FIRST}.log"):
        pytest.skip("this file system keeps its pages")
    log.cool()
    await check_lost(engine, [5], PER_SEGMENT + 3)
    await engine.close()


async def test_a_look_up_by_time_goes_over_damage(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "logs", CONFIG)
    for time in range(20):
        await append(engine.logs[AT], VALUE, at_ms=1000 + time)
    await engine.close()
    change(tmp_path / "logs" / "orders-0" / f"{FIRST}.log", 3 * ONE + 9)
    engine = await open_engine(tmp_path / "logs", CONFIG)
    found = await engine.logs[AT].find_time(1010)
    assert found is not None and found.offset == 10
    await engine.close()


async def test_a_missing_last_segment_is_said_and_its_offsets_are_not_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path, PER_SEGMENT + 5, clean=True)
    (folder / "orders-0" / f"{SECOND}.log").unlink()
    engine = await open_engine(folder, CONFIG)
    assert "records are missing" in messages(caplog, logging.ERROR)
    assert engine.logs[AT].end_offset == PER_SEGMENT + 5
    await append(engine.logs[AT], VALUE)
    await check_lost(engine, list(range(PER_SEGMENT, PER_SEGMENT + 5)), PER_SEGMENT + 6)
    await engine.close()


async def test_a_missing_segment_in_the_middle_is_said_and_not_skipped_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path, 2 * PER_SEGMENT + 5, clean=True)
    (folder / "orders-0" / f"{SECOND}.log").unlink()
    engine = await open_engine(folder, CONFIG)
    assert "records are missing" in messages(caplog, logging.ERROR)
    await check_lost(engine, list(range(PER_SEGMENT, 2 * PER_SEGMENT)), 2 * PER_SEGMENT + 5)
    await engine.close()


@pytest.mark.parametrize("segment", [FIRST, SECOND])
async def test_a_segment_that_was_cut_short_is_noticed(tmp_path: Path, segment: str) -> None:
    folder = await written(tmp_path, PER_SEGMENT + 10, clean=True)
    os.truncate(folder / "orders-0" / f"{segment}.log", 6 * ONE)
    engine = await open_engine(folder, CONFIG)
    end = PER_SEGMENT if segment == FIRST else PER_SEGMENT + 10
    await check_lost(engine, list(range(int(segment) + 6, end)), PER_SEGMENT + 10)
    await engine.close()


async def test_missing_first_segments_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = await written(tmp_path, PER_SEGMENT + 5, clean=True)
    (folder / "orders-0" / f"{FIRST}.log").unlink()
    engine = await open_engine(folder, CONFIG)
    assert engine.logs[AT].start_offset == PER_SEGMENT
    assert "the first segments of a log are missing" in messages(caplog, logging.WARNING)
    assert len(await read_all(engine.logs[AT])) == 5
    await engine.close()


async def test_a_log_without_any_segment_goes_on_behind_its_last_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path, 5, clean=True)
    (folder / "orders-0" / f"{FIRST}.log").unlink()
    engine = await open_engine(folder, CONFIG)
    assert "no segment has these offsets" in messages(caplog, logging.ERROR)
    assert await append(engine.logs[AT], VALUE) == 5
    await engine.close()


async def test_compaction_does_not_touch_what_it_cannot_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(segment_bytes=8192, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    engine = await open_engine(tmp_path / "logs", config)
    for number in range(PER_SEGMENT + 20):
        await append(engine.logs[AT], VALUE, keys=[b"k%d" % (number % 5)])
    await engine.close()
    path = tmp_path / "logs" / "orders-0" / f"{FIRST}.log"
    change(path, 4 * ONE + 90)
    content = path.read_bytes()
    engine = await open_engine(tmp_path / "logs", config)
    assert not await engine.logs[AT].compact()
    assert path.read_bytes() == content
    assert "compaction skips a segment" in messages(caplog, logging.ERROR)
    assert not list(path.parent.glob("*.cleaned"))
    assert read_header(content).base_offset == 0
    await engine.close()


async def test_a_damaged_segment_does_not_keep_the_others_from_being_compacted(tmp_path: Path) -> None:
    """Else one bit would make a compacted topic grow for ever."""
    clock = ManualClock(NOW_MS)
    config = settings(
        segment_bytes=2048, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", delete_retention_ms=1000
    )
    engine = await open_engine(tmp_path / "logs", config, clock=clock)
    log = engine.logs[AT]
    last: dict[bytes, int] = {}

    async def put(key: bytes, value: bytes | None) -> None:
        last[key] = await append(log, value, keys=[key])

    await put(b"gone", VALUE)
    for number in range(60):
        await put(b"k%d" % (number % 5), VALUE)
    await put(b"gone", None)
    for number in range(60):
        await put(b"k%d" % (number % 5), VALUE)
    await engine.close()
    _, hurt, *_ = stored_batches(tmp_path / "logs" / "orders-0")
    flip(hurt, 90)
    for _ in range(3):
        engine = await open_engine(tmp_path / "logs", config, clock=clock)
        log = engine.logs[AT]
        before = log.size_bytes
        assert await log.compact()
        assert log.size_bytes < before
        assert not await log.compact(), "there is nothing more to do before the log has grown"
        clock.advance(2000)
        found, bad = await read_around_damage(log)
        offsets = {record.offset for record in found}
        assert bad == [1] and 0 in offsets and set(last.values()) <= offsets
        assert last[b"gone"] in offsets, "a tombstone stays as long as the damaged segment has what it deletes"
        for number in range(60):
            await put(b"k%d" % (number % 5), VALUE)
        await engine.close()
    engine = await open_engine(tmp_path / "logs", config, clock=clock)
    log = engine.logs[AT]
    await read_around_damage(log)
    assert await log.repair(log.damage[0], memoryview(hurt.content))
    for _ in range(3):
        await log.compact()
        clock.advance(2000)
    offsets = {record.offset for record in await read_all(log)}
    assert 0 not in offsets and last[b"gone"] not in offsets, "once it is repaired all is compacted as ever"
    await engine.close()
