"""The index of tags beside the segments: it comes back, it may be missing or damaged, and it is never false."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.background_tasks import BackgroundTasks
from penstock.storage.segmented.engine import SegmentedEngine
from penstock.storage.segmented.log import SegmentedLog
from penstock.storage.segmented.reading.file_dump import reader_of
from penstock.storage.segmented.reading.tag_index import SegmentTags, TagRoom
from support.leading import leading
from support.logs import AT, EPOCH, TOPIC_ID, new_engine, open_engine, settings
from support.views import Viewer, append_tagged, tagged

CONFIG = settings(segment_bytes=2048, index_interval_bytes=256, retention_ms=-1)
COUNT = 60


async def fill(engine: SegmentedEngine, tag: str, count: int = COUNT, epoch: int = EPOCH) -> None:
    for number in range(count):
        await append_tagged(engine.logs[AT], tagged(b"x" * 150, tag, "odd" if number % 2 else "even"), epoch=epoch)


async def look(
    engine: SegmentedEngine, expression: str, epoch: int = EPOCH, start: int | None = None
) -> tuple[list[int], int]:
    """What a view shows, and how many bytes were looked at for it."""
    viewer = Viewer(expression)
    found = await viewer.offsets(leading(engine.logs[AT], epoch), start)
    return found, viewer.effort.looked_at_bytes


def tag_files(folder: Path) -> list[Path]:
    return sorted((folder / str(AT)).glob("*.tags"))


async def indexed(folder: Path) -> list[Path]:
    """A log of several segments that a view has read to the end, closed again; its index files."""
    engine = await open_engine(folder, CONFIG)
    await fill(engine, "a")
    await engine.logs[AT].flush()
    assert (await look(engine, "b"))[0] == []
    await engine.close()
    return tag_files(folder)


async def test_what_was_known_of_closed_segments_is_known_after_a_restart(tmp_path: Path) -> None:
    files = await indexed(tmp_path)
    engine = await open_engine(tmp_path, CONFIG)
    segments = engine.logs[AT].segments
    assert len(files) == len(segments) - 1 > 3
    found, looked_at = await look(engine, "b")
    assert found == []
    assert 0 < looked_at <= segments[-1].size
    assert (await look(engine, "a"))[0] == list(range(COUNT))
    await engine.close()


@pytest.mark.parametrize("harm", ["missing", "empty", "torn", "garbage"])
async def test_an_index_that_is_missing_or_damaged_is_made_anew(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    for path in await indexed(tmp_path):
        content = path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "torn": content[:-3], "garbage": bytes(len(content))}[harm])
    with caplog.at_level(logging.WARNING):
        engine = await open_engine(tmp_path, CONFIG)
        assert (await look(engine, "even"))[0] == list(range(0, COUNT, 2))
        await engine.close()
    assert ("rebuilt a tag index" in caplog.text) == (harm != "missing")
    engine = await open_engine(tmp_path, CONFIG)
    assert (await look(engine, "b"))[1] <= engine.logs[AT].segments[-1].size
    await engine.close()


async def test_a_file_of_the_index_can_be_dumped(tmp_path: Path) -> None:
    first = (await indexed(tmp_path))[0]
    read = reader_of(first)
    assert read is not None
    rows = list(read())
    assert rows[0] == {"start_offset": 0, "end_offset": 1, "tags": [b"a", b"even"], "alike": None}
    assert all("damage" not in row for row in rows)


async def test_an_index_goes_with_its_segment(tmp_path: Path) -> None:
    files = await indexed(tmp_path)
    engine = await open_engine(tmp_path, CONFIG)
    await engine.logs[AT].trim(COUNT - 1)
    await engine.close()
    assert not set(files) & set(tag_files(tmp_path))


async def test_a_cut_removes_what_was_known_of_what_it_takes(tmp_path: Path) -> None:
    await indexed(tmp_path)
    engine = await open_engine(tmp_path, CONFIG)
    await look(engine, "b")
    await engine.logs[AT].cut(20)
    await fill(engine, "b", epoch=EPOCH + 1)
    await engine.logs[AT].flush()
    await engine.close()
    engine = await open_engine(tmp_path, CONFIG)
    assert (await look(engine, "b", EPOCH + 1))[0] == list(range(20, 20 + COUNT))
    assert (await look(engine, "a", EPOCH + 1))[0] == list(range(20))
    await engine.close()


@pytest.mark.parametrize("seed", range(6))
async def test_after_a_power_loss_the_index_says_nothing_of_records_that_are_gone(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files, chance = FaultyFiles(root), random.Random(seed)
    engine = await open_engine(root / "logs", CONFIG, files=files)
    taken: list[Path] = []
    operations = itertools.count(1)

    def lose(what: str, path: Path) -> None:
        with files.lock:
            if next(operations) % 23 == 0 and len(taken) < 8:
                taken.append(tmp_path / f"lost-{len(taken)}")
                files.power_loss(chance.randrange(1 << 30), into=taken[-1])

    files.on_operation = lose
    for _ in range(4):
        await fill(engine, "a", 15)
        assert (await look(engine, "b"))[0] == []
    files.on_operation = None
    await engine.close()
    assert taken
    for folder in taken:
        again = new_engine(folder / "logs")
        await again.open({AT: (TOPIC_ID, CONFIG)})
        kept = again.logs[AT].end_offset
        await fill(again, "b", 30)
        assert (await look(again, "b", start=kept))[0] == list(range(kept, kept + 30))
        await again.close()


async def test_nothing_is_written_of_bytes_that_a_power_loss_could_take_back(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = await open_engine(tmp_path / "logs", CONFIG, files=files)
    await engine.logs[AT].prepare_write()  # makes its files
    touched: list[Path] = []
    files.on_operation = lambda what, path: touched.append(path)
    files.hold_syncs()
    await fill(engine, "a")
    assert (await look(engine, "b"))[0] == []
    await asyncio.get_running_loop().run_in_executor(engine.logs[AT]._env.read_pool, lambda: None)
    assert len(engine.logs[AT].segments) > 5
    assert not [path for path in touched if ".tags" in path.name]
    files.release_syncs()
    await engine.logs[AT].flush()
    assert (await look(engine, "b"))[0] == []
    await engine.close()
    assert len(tag_files(tmp_path / "logs")) > 4


async def test_memory_for_the_index_has_a_bound_and_what_is_let_go_comes_back(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path, CONFIG)
    log = engine.logs[AT]
    assert isinstance(log, SegmentedLog)
    log.tags = SegmentTags(log, BackgroundTasks("orders-0"), replace(log._env, tag_room=(room := TagRoom(2000))))
    await fill(engine, "a")
    await log.flush()
    await look(engine, "b")
    assert 0 < room.bytes <= 2000
    await log.tags.close()
    assert room.bytes == 0
    assert len(tag_files(tmp_path)) == len(log.segments) - 1 > 5
    found, looked_at = await look(engine, "b")
    assert found == []
    assert looked_at <= log.segments[-1].size
    await engine.close()
