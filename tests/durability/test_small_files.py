"""Files beside the records may be missing, short or garbage: the log comes back as it was, and says what it did."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.segmented.disk.identity import Identity, read_identity
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import (
    ALL,
    AT,
    NOW_MS,
    TOPIC_ID,
    append,
    append_batch,
    batch,
    new_engine,
    open_engine,
    read_all,
    settings,
)

CONFIG = settings(segment_bytes=4096, index_interval_bytes=256)
COUNT = 60


async def written(folder: Path, *, clean: bool = True) -> Path:
    """Several segments with rising timestamps, by two producers."""
    engine = await open_engine(folder / "run", CONFIG)
    log = engine.logs[AT]
    for number in range(COUNT):
        await append_batch(
            log,
            memoryview(
                batch(b"%d" % number + b"x" * 200, at_ms=NOW_MS + number, producer=number % 2, sequence=number // 2)
            ),
            number // 20,
        )
    await log.flush()
    if not clean:
        shutil.copytree(folder / "run", folder / "crashed")
    await engine.close()
    return folder / "run" if clean else folder / "crashed"


async def check_whole(engine: SegmentedEngine) -> None:
    log = engine.logs[AT]
    assert [record.offset for record in await read_all(log)] == list(range(COUNT))
    for number in (0, 1, 13, 17, 30, 47, 59):
        found = await log.find_time(NOW_MS + number)
        assert found is not None and found.offset == number
        assert (await log.read(number, 1, COUNT)).size > 0
    largest = await log.find_max_timestamp()
    assert largest is not None and largest.offset == COUNT - 1
    assert log.epochs.starts == ((0, 0), (1, 20), (2, 40))
    assert (await append_batch(log, memoryview(batch(b"58", producer=0, sequence=29)), 2)).is_repeat
    assert await append(log, b"next", producer=0, sequence=30) == COUNT


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "empty", "short", "entry-less", "garbage", "flipped", "of-another"])
async def test_an_index_that_cannot_be_used_is_made_anew(
    tmp_path: Path, clean: bool, which: str, suffix: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path, clean=clean)
    paths = sorted((folder / "orders-0").glob(f"*{suffix}"))
    path = paths[0 if which == "first" else -1]
    content = path.read_bytes()
    entry = 8 if suffix == ".index" else 12
    path.write_bytes(
        {
            "missing": b"",
            "empty": b"",
            "short": content[:-5],
            "entry-less": content[:-entry],
            "garbage": os.urandom(len(content)),
            "flipped": bytes([content[0] ^ 1]) + content[1:],
            "of-another": paths[1 if which == "first" else 0].read_bytes()[: len(content) - entry],
        }[harm]
    )
    if harm == "missing":
        path.unlink()
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    if clean or which == "first":
        assert "rebuilt an index" in messages(caplog)
    await engine.close()


async def test_a_clean_stop_reads_nothing_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = await written(tmp_path)
    engine = await open_engine(folder, CONFIG)
    assert messages(caplog) == ""
    await check_whole(engine)
    await engine.close()


async def test_an_active_segment_that_grew_after_a_restart_is_indexed_to_its_end(tmp_path: Path) -> None:
    config = settings(retention_ms=1000)
    clock = ManualClock(NOW_MS)
    for life in range(3):
        engine = await open_engine(tmp_path / "logs", config, clock)
        await append(engine.logs[AT], b"%d" % life, at_ms=clock.now_ms())
        await engine.close()
        clock.advance(900)
    engine = await open_engine(tmp_path / "logs", config, clock)
    await engine.logs[AT].apply_retention()
    assert engine.logs[AT].start_offset == 0, "its newest record is 900 ms old"
    found = await engine.logs[AT].find_time(NOW_MS + 1700)
    assert found is not None and found.offset == 2
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("harm", ["missing", "garbage", "flipped"])
async def test_producers_are_known_without_their_snapshots(tmp_path: Path, clean: bool, harm: str) -> None:
    folder = await written(tmp_path, clean=clean)
    for path in (folder / "orders-0").glob("*.producers"):
        content = path.read_bytes()
        if harm == "missing":
            path.unlink()
        else:
            path.write_bytes(os.urandom(50) if harm == "garbage" else content[:-1] + bytes([content[-1] ^ 1]))
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"format": 1, "clean": true, "logs": []}',
        b"\xff\xfe",
        b"[" * 9999,
    ]
    + [
        json.dumps({"format": 1, "clean": True, "logs": {"orders-0": point}}).encode()
        for point in (
            dict[str, object](),
            list[object](),
            {"start": 9, "recovery": 0, "end": 5},
            {"start": "0", "recovery": 0, "end": 60},
        )
    ],
)
async def test_a_checkpoint_that_cannot_be_used_costs_only_time(
    tmp_path: Path, clean: bool, content: bytes | None
) -> None:
    folder = await written(tmp_path, clean=clean)
    if content is None:
        (folder / "checkpoint.json").unlink()
    else:
        (folder / "checkpoint.json").write_bytes(content)
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    await engine.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [None, b"garbage", b"1 0\n0 5\n", b"1\n", b"\xff"])
async def test_leader_epochs_are_read_from_the_batches_if_their_file_is_unusable(
    tmp_path: Path, clean: bool, content: bytes | None
) -> None:
    folder = await written(tmp_path, clean=clean)
    if content is None:
        (folder / "orders-0" / "epochs").unlink()
    else:
        (folder / "orders-0" / "epochs").write_bytes(content)
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    await engine.close()


@pytest.mark.parametrize("lives", [1, 2])
async def test_leader_epochs_found_in_the_tail_after_a_crash_are_known_to_all_later_starts(
    tmp_path: Path, lives: int
) -> None:
    engine = await open_engine(tmp_path / "0", CONFIG)
    await append_batch(engine.logs[AT], memoryview(batch(b"before the stop")), 0)
    await engine.close()
    for life in range(lives):
        engine = await open_engine(tmp_path / str(life), CONFIG)
        await append_batch(engine.logs[AT], memoryview(batch(b"before the crash")), 2 * life + 1)
        await append_batch(engine.logs[AT], memoryview(batch(b"before the crash")), 2 * life + 2)
        shutil.copytree(tmp_path / str(life), tmp_path / str(life + 1))
        await engine.close()
    expected = tuple((epoch, epoch) for epoch in range(2 * lives + 1))
    for _ in range(2):
        engine = await open_engine(tmp_path / str(lives), CONFIG)
        assert engine.logs[AT].epochs.starts == expected
        await engine.close()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"format": 9}', b'{"format": 1, "cleaned": 1, "passes": [1]}']
)
async def test_compaction_starts_over_without_its_note(tmp_path: Path, content: bytes) -> None:
    config = settings(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    engine = await open_engine(tmp_path / "logs", config)
    log = engine.logs[AT]
    for number in range(8):
        await append(log, b"%d" % number, b"x" * 800, keys=[b"k", b"f%d" % number])
    await log.compact()
    before = await read_all(log)
    (tmp_path / "logs" / "orders-0" / "compaction.json").write_bytes(content)
    await log.compact()
    assert await read_all(log) == before
    await engine.close()


async def test_a_folder_of_a_topic_that_is_gone_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = await written(tmp_path)
    for life in range(3):
        fresh_id = uuid.uuid4()
        engine = new_engine(folder)
        await engine.open({AT: (fresh_id, CONFIG)})
        assert engine.logs[AT].end_offset == 0
        await append(engine.logs[AT], b"%d" % life)
        await engine.close()
    assert "renamed the folder of a log" in messages(caplog)
    assert "is missing" not in messages(caplog)
    strays = sorted(path.name for path in folder.glob("*.stray"))
    assert f"orders-0.{TOPIC_ID.hex}.stray" in strays
    assert len(strays) == 3
    assert len(list((folder / f"orders-0.{TOPIC_ID.hex}.stray").glob("*.log"))) > 2, "nothing of it is lost"


async def test_a_folder_that_has_vanished_is_told_of_and_one_that_never_was_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path)
    shutil.rmtree(folder / "orders-0")
    for _ in range(2):
        engine = await open_engine(folder, CONFIG)
        assert engine.logs[AT].end_offset == 0
        await engine.close()
    assert messages(caplog).count("the folder of a log is missing") == 1


async def test_a_file_in_the_place_of_a_log_is_left_alone_and_the_log_is_offline(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "orders-0").write_text("not a folder")
    engine = await open_engine(folder, CONFIG)
    assert AT not in engine.logs
    await engine.close()
    assert (folder / "orders-0").read_text() == "not a folder"


async def test_strays_of_the_same_name_do_not_stop_a_start(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for _ in range(3):
        (folder / "unwanted").mkdir(parents=True)
        engine = await open_engine(folder, CONFIG)
        await engine.close()
    assert len(list(folder.glob("unwanted.unknown*.stray"))) == 3


async def test_plain_files_among_the_folders_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    engine = await open_engine(folder, CONFIG)
    assert await append(engine.logs[AT], b"a") == 0
    await engine.close()
    assert (folder / "notes.txt").read_text() == "hello"


@pytest.mark.parametrize("content", [None, b"", b"{}", b"garbage"])
async def test_records_in_a_folder_that_does_not_say_whose_it_is_are_left_as_they_are(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = await written(tmp_path)
    identity = folder / "orders-0" / "partition.json"
    good = identity.read_bytes()
    if content is None:
        identity.unlink()
    else:
        identity.write_bytes(content)
    files = {path.name: path.read_bytes() for path in (folder / "orders-0").glob("*.log")}
    engine = await open_engine(folder, CONFIG)
    assert AT not in engine.logs
    assert "log is offline" in messages(caplog)
    with pytest.raises(StorageError):
        await engine.create(AT, TOPIC_ID, CONFIG)
    await engine.close()
    assert {path.name: path.read_bytes() for path in (folder / "orders-0").glob("*.log")} == files
    identity.write_bytes(good)
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    await engine.close()


async def test_no_flipped_bit_makes_a_folder_that_of_another_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be set aside, and a broker of a cluster would delete it after a while."""
    folder = await written(tmp_path)
    identity = folder / "orders-0" / "partition.json"
    good = identity.read_bytes()
    for at in range(len(good)):
        for bit in range(8):
            hurt = bytearray(good)
            hurt[at] ^= 1 << bit
            identity.write_bytes(hurt)
            found = read_identity(Files(), folder / "orders-0")
            assert found is None or found == Identity(TOPIC_ID, AT), hurt
    digits = good.index(str(TOPIC_ID).encode())
    identity.write_bytes(good[:digits] + bytes([good[digits] ^ 1]) + good[digits + 1 :])
    engine = await open_engine(folder, CONFIG)
    assert AT not in engine.logs and (folder / "orders-0").exists()
    assert "log is offline" in messages(caplog)
    await engine.close()
    identity.write_bytes(json.dumps({key: value for key, value in json.loads(good).items() if key != "crc"}).encode())
    engine = await open_engine(folder, CONFIG)
    await check_whole(engine)
    await engine.close()


async def test_a_log_that_was_offline_keeps_its_start(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "logs", CONFIG)
    for _ in range(10):
        await append(engine.logs[AT], b"x" * 100)
    await engine.logs[AT].trim(6)
    await engine.close()
    identity = tmp_path / "logs" / "orders-0" / "partition.json"
    good = identity.read_bytes()
    identity.write_bytes(b"?")
    engine = await open_engine(tmp_path / "logs", CONFIG)
    assert not engine.logs
    await engine.close()
    identity.write_bytes(good)
    engine = await open_engine(tmp_path / "logs", CONFIG)
    assert (engine.logs[AT].start_offset, engine.logs[AT].end_offset) == (6, 10)
    await engine.close()


async def test_an_interrupted_removal_is_finished_by_the_next_start(tmp_path: Path) -> None:
    folder = await written(tmp_path)
    (folder / "orders-0").rename(folder / f"orders-0.{TOPIC_ID.hex}.removed")
    engine = await open_engine(folder, {})
    await engine.close()
    assert [path.name for path in folder.iterdir()] == ["checkpoint.json"]


async def test_more_segments_than_files_may_be_open_can_be_read(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "logs", settings(segment_bytes=1024), open_files=16)
    log = engine.logs[AT]
    for number in range(59):
        await append(log, b"%d" % number + b"x" * 700)
    await log.flush()
    await append(log, b"59" + b"x" * 700)
    for _ in range(2):
        assert [record.offset for record in await read_all(log)] == list(range(60))
        found = await log.find_time(NOW_MS)
        assert found is not None and found.offset == 0
        assert len(engine.open_segments) <= 17
    await engine.close()


async def test_a_slice_can_be_sent_after_its_segment_was_deleted(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "logs", settings(segment_bytes=20_000))
    log = engine.logs[AT]
    for _ in range(4):
        await append(log, b"x" * 10_000)
    found = await log.read(0, ALL, 1)
    await log.trim(4)
    (part,) = found.parts
    assert not isinstance(part, bytes)
    assert len(os.pread(part.fileno(), part.size, part.position)) == found.size
    await engine.close()
