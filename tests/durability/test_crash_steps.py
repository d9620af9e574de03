"""A crash between any two file operations of a roll, a compaction, a removal leaves a log that comes back right."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from pathlib import Path

from penstock.clock import ManualClock
from support.logs import AT, NOW_MS, TOPIC_ID, Seen, append, new_engine, open_engine, read_all, settings
from support.steps import Steps, opened

COMPACTED = settings(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
MERGED = settings(segment_bytes=4096, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
"""Larger segments than those that were written: compaction makes one of several."""


async def test_a_crash_at_any_step_of_a_compaction(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await opened(steps, COMPACTED)
    log = engine.logs[AT]
    for number in range(12):
        await append(log, b"%d" % number, b"x" * 400, keys=[b"k%d" % (number % 3), b"f%d" % number])
    await log.flush()
    await engine._save(clean=False)
    before = await read_all(log)
    log.configure(MERGED)
    await steps.watch(log.compact)
    after = await read_all(log)
    assert len(after) < len(before)
    await engine.close()
    assert len(steps.copies) > 20
    for copy in steps.copies:
        again = await open_engine(copy / "logs", COMPACTED)
        found = await read_all(again.logs[AT])
        check_between(found, before, after)
        assert again.logs[AT].end_offset == log.end_offset
        assert not list((copy / "logs" / "orders-0").glob("*.swap"))
        assert not list((copy / "logs" / "orders-0").glob("*.cleaned"))
        await again.logs[AT].compact()
        check_between(await read_all(again.logs[AT]), before, after)
        await again.close()


def check_between(found: list[Seen], before: list[Seen], after: list[Seen]) -> None:
    """Nothing that compaction keeps is missing, nothing is there that never was, and nothing is there twice."""
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    assert set(after) <= set(found) <= set(before)


async def test_a_crash_at_any_step_of_rolls_with_flushed_records(tmp_path: Path) -> None:
    config = settings(flush_messages=1, segment_bytes=1024)
    steps = Steps(tmp_path)
    engine = await opened(steps, config)
    log = engine.logs[AT]
    acknowledged: list[tuple[int, int]] = []

    async def produce() -> None:
        for number in range(8):
            await append(log, b"%d" % number + b"x" * 500, producer=7, sequence=number)
            acknowledged.append((len(steps.copies), number))

    await steps.watch(produce)
    await engine.close()
    for number, copy in enumerate(steps.copies):
        again = await open_engine(copy / "logs", config)
        fresh = again.logs[AT]
        found = await read_all(fresh)
        due = [value for at, value in acknowledged if at <= number - number % 3]
        assert [record.offset for record in found] == list(range(len(found)))
        assert len(found) >= len(due)
        if found:
            last = len(found) - 1
            repeat = await append(fresh, b"%d" % last + b"x" * 500, producer=7, sequence=last)
            assert repeat == last, "the producer is still known"
        assert await append(fresh, b"next", producer=7, sequence=len(found)) == len(found)
        await again.close()


async def test_a_crash_at_any_step_of_retention(tmp_path: Path) -> None:
    config, clock = settings(segment_bytes=1024, retention_ms=1000), ManualClock(NOW_MS)
    steps = Steps(tmp_path)
    engine = await opened(steps, config, clock)
    log = engine.logs[AT]
    for number in range(6):
        await append(log, b"%d" % number + b"x" * 500, at_ms=NOW_MS + 400 * number)
    await log.flush()
    await engine._save(clean=False)
    clock.advance(2100)
    await steps.watch(log.apply_retention)
    start = log.start_offset
    assert 0 < start < 6
    await engine.close()
    for copy in steps.copies:
        again = await open_engine(copy / "logs", config, clock)
        found = [record.offset for record in await read_all(again.logs[AT])]
        assert found == list(range(again.logs[AT].start_offset, 6))
        assert again.logs[AT].start_offset <= start
        await again.logs[AT].apply_retention()
        assert [record.offset for record in await read_all(again.logs[AT])] == list(range(start, 6))
        await again.close()
        names = {path.name[:20] for path in (copy / "logs" / "orders-0").iterdir() if path.name[0] == "0"}
        logs = {path.name[:20] for path in (copy / "logs" / "orders-0").glob("*.log")}
        assert {name for name in names if int(name) < start} <= logs, "no index is left without its segment"


async def test_a_crash_at_any_step_of_the_removal_of_a_log(tmp_path: Path) -> None:
    config = settings(segment_bytes=1024)
    steps = Steps(tmp_path)
    engine = await opened(steps, config)
    for number in range(6):
        await append(engine.logs[AT], b"%d" % number + b"x" * 500)
    await engine._save(clean=False)
    await steps.watch(lambda: engine.delete(AT))
    await engine.close()
    fresh_id = uuid.uuid4()
    for copy in steps.copies:
        again = new_engine(copy / "logs")
        await again.open({AT: (fresh_id, config)})
        log = again.logs[AT]
        assert (log.start_offset, log.end_offset) == (0, 0), "a new topic never starts with the old one's records"
        await append(log, b"new")
        await again.close()
        third = new_engine(copy / "logs")
        await third.open({AT: (fresh_id, config)})
        assert [record.value for record in await read_all(third.logs[AT])] == [b"new"]
        await third.close()


async def test_a_crash_at_any_step_of_the_creation_of_a_log(tmp_path: Path) -> None:
    config = settings()
    steps = Steps(tmp_path)
    engine = new_engine(steps.root / "logs", files=steps.files)
    await engine.open({})
    await steps.watch(lambda: engine.create(AT, TOPIC_ID, config))
    await engine.close()
    for copy in steps.copies:
        again = await open_engine(copy / "logs", config)
        assert await append(again.logs[AT], b"first") == 0
        await again.close()


async def test_a_topic_made_anew_is_not_mistaken_for_the_old_one_after_a_crash(tmp_path: Path) -> None:
    config = settings(flush_messages=1)
    engine = await open_engine(tmp_path / "logs", config)
    for _ in range(20):
        await append(engine.logs[AT], b"old")
    await engine.logs[AT].trim(15)
    await engine.delete(AT)
    fresh_id = uuid.uuid4()
    log = await engine.create(AT, fresh_id, config)
    await append(log, b"new")
    shutil.copytree(tmp_path / "logs", tmp_path / "crashed")
    await engine.close()
    again = new_engine(tmp_path / "crashed")
    await again.open({AT: (fresh_id, config)})
    assert [record.value for record in await read_all(again.logs[AT])] == [b"new"]
    assert again.logs[AT].start_offset == 0
    await again.close()


async def test_a_reader_in_the_middle_of_a_swap_sees_whole_records(tmp_path: Path) -> None:
    """The names of the old segments mean the new one before the log knows; files that were let go must not matter."""
    steps = Steps(tmp_path)
    engine = await opened(steps, COMPACTED)
    log = engine.logs[AT]
    for number in range(9):
        await append(log, b"%d" % number, b"x" * 400, keys=[b"k", b"f%d" % number])
    await log.flush()
    before = await read_all(log)
    log.configure(MERGED)
    loop = asyncio.get_running_loop()
    seen: list[list[Seen]] = []

    def look(what: str, path: Path) -> None:
        if threading.current_thread().name.startswith("clean"):
            for segment in engine.logs[AT].segments[:-1]:
                segment.release()
            seen.append(asyncio.run_coroutine_threadsafe(read_all(log), loop).result(30))

    steps.files.on_operation = look
    assert await log.compact()
    steps.files.on_operation = None
    after = await read_all(log)
    assert len(seen) > 10
    for found in seen:
        check_between(found, before, after)
    await engine.close()
