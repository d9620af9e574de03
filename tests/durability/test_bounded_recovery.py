"""After a crash only the end of a log is read again, however long its last segment is; what is found is all there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.storage.files import File, Files
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import AT, NOW_MS, append, append_batch, batch, open_engine, read_all, settings

CONFIG = settings(segment_bytes=1 << 24, index_interval_bytes=4096)
VALUE = b"x" * 10_000
NOTED_BYTES = 500_000


class CountedFile(File):
    bytes_read = 0

    def read(self, position: int, size: int) -> bytes:
        found = super().read(position, size)
        CountedFile.bytes_read += len(found)
        return found


class CountedFiles(Files):
    """Says how much was read of segments."""

    def open(self, path: Path) -> File:
        return CountedFile(path, os.open(path, os.O_RDWR))


async def fill(engine: SegmentedEngine, start: int, end: int) -> None:
    log = engine.logs[AT]
    for number in range(start, end):
        made = batch(VALUE, at_ms=NOW_MS + number, producer=7, sequence=number)
        await append_batch(log, memoryview(made), number // 100)


async def crash(engine: SegmentedEngine, folder: Path) -> Path:
    """What is on disk at this moment, in another folder."""
    copy = folder.with_name(folder.name + "-after")
    shutil.copytree(folder, copy)
    await engine.close()
    return copy


async def check(engine: SegmentedEngine, count: int) -> None:
    log = engine.logs[AT]
    assert log.end_offset == count
    assert [record.offset for record in await read_all(log)] == list(range(count))
    for number in range(0, count, 37):
        found = await log.find_time(NOW_MS + number)
        assert found is not None and found.offset == number
    largest = await log.find_max_timestamp()
    assert largest is not None and largest.offset == count - 1
    assert log.epochs.starts == tuple((epoch, 100 * epoch) for epoch in range((count + 99) // 100))
    repeat = memoryview(batch(VALUE, at_ms=NOW_MS + count - 1, producer=7, sequence=count - 1))
    assert (await append_batch(log, repeat, (count - 1) // 100)).is_repeat


async def test_what_was_noted_before_a_crash_is_not_read_again(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "a", CONFIG, recovery_bytes=NOTED_BYTES)
    await fill(engine, 0, 400)
    await engine.checkpoint()
    await fill(engine, 400, 420)
    after = await crash(engine, tmp_path / "a")
    CountedFile.bytes_read = 0
    engine = await open_engine(after, CONFIG, files=CountedFiles(), recovery_bytes=NOTED_BYTES)
    assert CountedFile.bytes_read < engine.logs[AT].size_bytes / 5
    await check(engine, 420)
    await engine.close()


async def test_crash_after_crash_leaves_everything_in_its_place(tmp_path: Path) -> None:
    folder, count = tmp_path / "a", 0
    for more in (130, 3, 70, 1, 200):
        engine = await open_engine(folder, CONFIG, recovery_bytes=NOTED_BYTES)
        await fill(engine, count, count + more)
        await engine.checkpoint()
        count += more
        await fill(engine, count, count + 2)
        count += 2
        folder = await crash(engine, folder)
        engine = await open_engine(folder, CONFIG, recovery_bytes=NOTED_BYTES)
        await check(engine, count)
        folder = await crash(engine, folder)


async def test_an_index_of_an_end_that_was_lost_is_not_believed_when_others_have_come(tmp_path: Path) -> None:
    """The index was saved and a power loss took the records behind the last sync; what comes next has another shape."""
    engine = await open_engine(tmp_path / "a", CONFIG, recovery_bytes=NOTED_BYTES)
    await fill(engine, 0, 100)
    await engine.checkpoint()
    synced = engine.logs[AT].size_bytes
    noted = (tmp_path / "a" / "checkpoint.json").read_bytes()
    await fill(engine, 100, 300)
    await engine.checkpoint()
    after = await crash(engine, tmp_path / "a")
    (after / "checkpoint.json").write_bytes(noted)
    (segment,) = (after / str(AT)).glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(synced + 5_000)
    engine = await open_engine(after, CONFIG, recovery_bytes=1 << 30)
    log = engine.logs[AT]
    assert log.end_offset == 100
    for number in range(100, 1000):
        await append(log, b"%d" % number + b"y" * 3_000)
    await log.flush()
    await engine.checkpoint()
    again = await crash(engine, after)
    engine = await open_engine(again, CONFIG, recovery_bytes=NOTED_BYTES)
    assert [record.offset for record in await read_all(engine.logs[AT])] == list(range(1000))
    await engine.close()


async def test_a_log_that_was_cut_and_grew_again_is_found_as_it_is(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "a", CONFIG, recovery_bytes=NOTED_BYTES)
    await fill(engine, 0, 200)
    await engine.checkpoint()
    log = engine.logs[AT]
    await log.cut(90)
    for number in range(90, 900):
        await append(log, b"%d" % number + b"y" * 3_000)
    await log.flush()
    after = await crash(engine, tmp_path / "a")
    engine = await open_engine(after, CONFIG, recovery_bytes=NOTED_BYTES)
    log = engine.logs[AT]
    assert [record.offset for record in await read_all(log)] == list(range(900))
    for offset in range(0, 900, 13):
        assert (await log.read(offset, 1, 900)).size > 0
    await engine.close()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".producers", ".aborted"])
async def test_a_note_that_is_gone_costs_only_time(tmp_path: Path, suffix: str) -> None:
    engine = await open_engine(tmp_path / "a", CONFIG, recovery_bytes=NOTED_BYTES)
    await fill(engine, 0, 150)
    await engine.checkpoint()
    after = await crash(engine, tmp_path / "a")
    for path in (after / str(AT)).glob(f"*{suffix}"):
        path.unlink()
    engine = await open_engine(after, CONFIG, recovery_bytes=NOTED_BYTES)
    await check(engine, 150)
    await engine.close()
