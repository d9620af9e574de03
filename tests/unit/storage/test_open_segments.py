"""The bound on open segment files: held, whatever is open, at a cost that does not grow with the number of logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.ids import TopicPartition
from penstock.storage.files import File, Files
from penstock.storage.segmented.disk.open_segments import OpenSegments
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.storage.segmented.log import SegmentedLog
from penstock.storage.segmented.segment import Segment
from support.logs import append, open_engine, read_all, settings

LIMIT = 16
MANY = [TopicPartition("orders", number) for number in range(100)]


def descriptors(folder: Path) -> int:
    """How many files below a folder this process has open."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
        except FileNotFoundError:
            continue  # that of the listing
    return count


class Counted(Segment):
    """Counts how often it was asked to let its file go."""

    __slots__ = ()
    asked = 0

    def release(self) -> bool:
        Counted.asked += 1
        return super().release()


def test_the_work_of_an_open_does_not_grow_with_the_number_of_segments(tmp_path: Path) -> None:
    """All have bytes that are not synced, so that none can be closed."""
    open_segments = OpenSegments(Files(), LIMIT)
    segments, asked = [], []
    for number in range(400):
        before = Counted.asked
        segment = Counted.create(tmp_path, number, open_segments)
        segment.size = 1
        segments.append(segment)
        asked.append(Counted.asked - before)
    assert max(asked) <= 2 * LIMIT
    assert all(segment._file is not None for segment in segments)


async def opened(tmp_path: Path, **named: object) -> SegmentedEngine:
    return await open_engine(tmp_path, dict.fromkeys(MANY, settings(**named)), open_files=LIMIT)


async def test_no_more_files_are_open_than_allowed_though_every_log_is_written_to(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    for number in range(3):
        for at in MANY:
            log = engine.logs[at]
            await log.prepare_write()
            await append(log, b"%d" % number)
            assert len(engine.open_segments) <= LIMIT
            assert descriptors(tmp_path) <= LIMIT
    for at in MANY:
        assert [record.value for record in await read_all(engine.logs[at])] == [b"0", b"1", b"2"]
        assert descriptors(tmp_path) <= LIMIT
    await engine.close()
    assert descriptors(tmp_path) == 0


async def test_what_was_written_to_files_that_were_closed_and_opened_again_survives(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    for number in range(3):
        for at in MANY:
            await engine.logs[at].prepare_write()
            await append(engine.logs[at], b"%d" % number)
    await engine.close()
    again = await opened(tmp_path)
    assert descriptors(tmp_path) <= LIMIT
    for at in MANY:
        assert [record.value for record in await read_all(again.logs[at])] == [b"0", b"1", b"2"]
    await again.close()


async def test_a_start_after_a_crash_opens_no_more_files_than_allowed(tmp_path: Path) -> None:
    engine = await opened(tmp_path)
    for at in MANY:
        await engine.logs[at].prepare_write()
        await append(engine.logs[at], b"kept")
    (tmp_path / "checkpoint.json").unlink()  # nobody vouches for anything
    again = await opened(tmp_path)
    assert len(again.open_segments) <= LIMIT
    for at in MANY:
        assert [record.value for record in await read_all(again.logs[at])] == [b"kept"]
    await again.close()
    await engine.close()


async def test_a_file_that_is_let_go_while_it_is_written_to_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are not synced: what goes wrong with them is told only through a file that was open by then."""
    engine = await open_engine(tmp_path, settings())
    (log,) = engine.logs.values()
    assert isinstance(log, SegmentedLog)
    await append(log, b"a")
    await log.flush()
    segment = log.segments[-1]
    write = File.write

    def release_meanwhile(file: File, position: int, data: bytes) -> None:
        write(file, position, data)
        assert segment.release(), "as a thread would that needs room"

    monkeypatch.setattr(File, "write", release_meanwhile)
    await append(log, b"b")
    monkeypatch.undo()
    assert segment.is_open
    assert not segment.release()
    assert [record.value for record in await read_all(log)] == [b"a", b"b"]
    await engine.close()
