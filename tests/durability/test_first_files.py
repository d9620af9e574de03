"""A log has no files before its first append, and that append makes them in a way that survives crashes."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import uuid
import weakref
from pathlib import Path

import pytest

from penstock.errors import DiskFullError, StorageError
from penstock.ids import TopicPartition
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.recovery import checkpoint
from support.logs import AT, TOPIC_ID, append, new_engine, open_engine, read_all, settings
from support.steps import Steps
from support.waiting import until

FLUSHED = settings(flush_messages=1)
MANY = [TopicPartition("orders", number) for number in range(150)]


async def test_a_log_without_records_is_not_on_disk(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = new_engine(tmp_path / "logs", files=files)
    await engine.open({})
    operations: list[tuple[str, Path]] = []
    files.on_operation = lambda what, path: operations.append((what, path))
    for at in MANY:
        await engine.create(at, TOPIC_ID, settings())
    await engine.delete(*MANY[:50])
    assert operations == []
    await engine.close()
    again = await open_engine(tmp_path / "logs", dict.fromkeys(MANY[50:], settings()))
    assert {(log.start_offset, log.end_offset) for log in again.logs.values()} == {(0, 0)}
    assert await append(again.logs[MANY[60]], b"first") == 0
    await again.close()
    assert [path.name for path in (tmp_path / "logs").iterdir() if path.is_dir()] == ["orders-60"]


async def test_upkeep_of_a_log_without_records_makes_nothing_of_it(tmp_path: Path) -> None:
    """What a log consists of is made when it is used: thousands are not."""
    engine = await open_engine(tmp_path, settings(cleanup_policy="compact,delete"))
    log = engine.logs[AT]
    parts = set(vars(log))
    await log.apply_retention()
    await log.compact()
    await engine.checkpoint()
    assert set(vars(log)) == parts
    assert "_flusher" not in parts
    await engine.close()


async def test_a_crash_at_any_step_of_the_first_append(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = new_engine(steps.root / "logs", files=steps.files)
    await engine.open({})
    log = await engine.create(AT, TOPIC_ID, FLUSHED)
    await steps.watch(lambda: append(log, b"first"))
    await engine.close()
    assert len(steps.copies) > 5
    for copy in steps.copies:
        again = await open_engine(copy / "logs", FLUSHED)
        found = [record.value for record in await read_all(again.logs[AT])]
        assert found in ([], [b"first"])
        assert await append(again.logs[AT], b"next") == len(found)
        await again.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_first_append_that_was_acknowledged_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    engine = await open_engine(root / "logs", FLUSHED, files=files)
    await append(engine.logs[AT], b"first")
    files.power_loss(seed, into=tmp_path / "after")
    await engine.close()
    again = await open_engine(tmp_path / "after/logs", FLUSHED)
    assert [record.value for record in await read_all(again.logs[AT])] == [b"first"]
    await again.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_power_loss_before_the_first_sync_leaves_a_log_that_can_be_used(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    engine = await open_engine(root / "logs", settings(), files=files)
    await append(engine.logs[AT], b"never promised")
    files.power_loss(seed, into=tmp_path / "after")
    await engine.close()
    again = await open_engine(tmp_path / "after/logs", settings())
    found = len(await read_all(again.logs[AT]))
    assert await append(again.logs[AT], b"next") == found
    await again.close()


async def test_a_full_disk_refuses_the_first_append_and_takes_it_when_there_is_room(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = await open_engine(tmp_path / "logs", settings(), files=files)
    log = engine.logs[AT]
    files.run_full_after(10)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            await append(log, b"first")
    assert log.failure is None and log.disk_is_full
    files.make_room()
    assert await append(log, b"first") == 0
    assert not log.disk_is_full
    await engine.close()


async def test_a_disk_that_fails_the_first_append_takes_the_log_offline(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = await open_engine(tmp_path / "logs", settings(), files=files)

    def refuse(what: str, path: Path) -> None:
        if what == "make folder":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    files.on_operation = refuse
    with pytest.raises(StorageError, match="making the files of orders-0 failed"):
        await append(engine.logs[AT], b"first")
    assert engine.logs[AT].failure is not None
    files.on_operation = None
    await engine.close()


async def test_records_of_a_log_that_is_offline_are_not_written_over(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path, FLUSHED)
    await append(engine.logs[AT], b"precious")
    await engine.close()
    (tmp_path / "orders-0/partition.json").write_text("?")
    again = await open_engine(tmp_path, FLUSHED)
    assert AT not in again.logs
    with pytest.raises(StorageError, match="holds records already"):
        await again.create(AT, TOPIC_ID, FLUSHED)
    await again.close()
    assert b"precious" in (tmp_path / "orders-0/00000000000000000000.log").read_bytes()


async def test_many_logs_are_removed_with_one_checkpoint(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = await open_engine(tmp_path / "logs", dict.fromkeys(MANY, settings()), files=files)
    for at in MANY:
        await append(engine.logs[at], b"a")
    saved: list[Path] = []
    files.on_operation = lambda what, path: saved.append(path) if what == "rename" else None
    await engine.delete(*MANY)
    assert len([path for path in saved if path.name.startswith(checkpoint.NAME)]) == 1
    assert not [path for path in (tmp_path / "logs").iterdir() if path.is_dir()]
    other = uuid.uuid4()
    log = await engine.create(AT, other, settings())
    assert await append(log, b"b") == 0
    await engine.close()


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_log_that_was_deleted_is_gone_from_memory_without_a_collector(tmp_path: Path, is_used: bool) -> None:
    """The collector does not look at what was made by the thousand."""
    engine = await open_engine(tmp_path, settings())
    if is_used:
        await append(engine.logs[AT], b"a")
        await read_all(engine.logs[AT])
        await engine.logs[AT].apply_retention()
    log = weakref.ref(engine.logs[AT])
    gc.disable()
    try:
        await engine.delete(AT)
        # A thread that worked on it lets go of it a moment after its answer.
        await asyncio.to_thread(until, lambda: log() is None, "nothing refers to the log")
    finally:
        gc.enable()
    await engine.close()


async def test_a_log_that_was_not_touched_is_closed_without_writing(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    engine = await open_engine(tmp_path / "logs", settings(), files=files)
    await append(engine.logs[AT], b"a", producer=1)
    await engine.close()
    again = await open_engine(tmp_path / "logs", settings(), files=files)
    assert len(await read_all(again.logs[AT])) == 1
    touched: list[Path] = []
    files.on_operation = lambda what, path: touched.append(path)
    await again.close()
    assert {path.name.removesuffix(".new") for path in touched} <= {checkpoint.NAME, "logs"}
    third = await open_engine(tmp_path / "logs", settings(), files=files)
    assert await append(third.logs[AT], b"b", producer=1, sequence=1) == 1
    await third.close()
