"""Transactions survive a crash between any two file operations, and the loss of any of their small files."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.records.batch import read_header
from penstock.storage.contract import Log
from support.leading import leading
from support.logs import ALL, AT, NOW_MS, Seen, append, content, open_engine, settings, split
from support.steps import Steps, opened
from support.transactions import end, read_committed, shown, txn_append

FLUSHED = settings(flush_messages=1, segment_bytes=1024, index_interval_bytes=200)
COMPACTED = settings(segment_bytes=1024, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
MERGED = settings(segment_bytes=4096, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
SEARCH = "scanning the whole log for aborted transactions"


class Play:
    """What happens in a log, so that for every prefix of it one can say what must be there."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, int, bytes]] = []
        """Offset, what, producer, value."""

    async def plain(self, log: Log, value: bytes) -> None:
        self.events.append((await append(log, value), "plain", -1, value))

    async def inside(self, log: Log, producer: int, value: bytes, sequence: int = 0, epoch: int = 0) -> None:
        offset = await txn_append(log, value, producer=producer, sequence=sequence, epoch=epoch)
        self.events.append((offset, "inside", producer, value))

    async def ends(self, log: Log, producer: int, *, commit: bool, epoch: int = 1) -> None:
        appended = await end(log, producer, commit=commit, epoch=epoch)
        self.events.append((appended.base_offset, "commit" if commit else "abort", producer, b""))

    async def check(self, log: Log) -> None:
        """The log is a prefix of what happened, and says of its transactions what that prefix says."""
        first: dict[int, int] = {}
        shown_to_clients: dict[int, bytes] = {}
        aborted: list[tuple[int, int]] = []
        pending: dict[int, dict[int, bytes]] = {}
        for offset, what, producer, value in self.events:
            if offset >= log.end_offset:
                break
            if what == "plain":
                shown_to_clients[offset] = value
            elif what == "inside":
                first.setdefault(producer, offset)
                pending.setdefault(producer, {})[offset] = value
            elif producer in first:
                began, records = first.pop(producer), pending.pop(producer)
                if what == "commit":
                    shown_to_clients |= records
                else:
                    aborted.append((producer, began))
        stable = min(first.values(), default=log.end_offset)
        assert log.first_unstable_offset == (stable if first else None)
        assert log.aborted_transactions(0, log.end_offset) == sorted(aborted, key=lambda each: each[1])
        expected = sorted((offset, value) for offset, value in shown_to_clients.items() if offset < stable)
        assert [(record.offset, record.value) for record in await read_committed(log, max_bytes=500)] == expected


async def interleaved(log: Log, play: Play) -> None:
    """Transactions that span segments, one that is older than all others, one that stays open."""
    padding = b"." * 300
    await play.inside(log, 1, b"long" + padding)
    for number in range(4):
        await play.inside(log, 2, b"%d" % number + padding, epoch=number)
        await play.plain(log, b"plain %d" % number)
        await play.inside(log, 2, b"%d again" % number, sequence=1, epoch=number)
        await play.ends(log, 2, commit=number % 2 == 1, epoch=number + 1)
    await play.inside(log, 3, b"open" + padding)
    await play.ends(log, 1, commit=False)
    await play.plain(log, b"behind" + padding)


async def test_a_crash_at_any_step_of_transactions_that_span_segments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps, play = Steps(tmp_path), Play()
    engine = await opened(steps, FLUSHED)
    await steps.watch(lambda: interleaved(engine.logs[AT], play))
    await play.check(engine.logs[AT])
    await engine.close()
    assert len(steps.copies) > 60
    for copy in steps.copies:
        again = await open_engine(copy / "logs", FLUSHED)
        await play.check(again.logs[AT])
        end_offset = again.logs[AT].end_offset
        await again.close()
        third = await open_engine(copy / "logs", FLUSHED)
        assert third.logs[AT].end_offset == end_offset
        await play.check(third.logs[AT])
        await third.close()
    assert SEARCH not in caplog.text, "after a crash nothing is read but the end of the log"


async def test_transactions_survive_stops_and_crashes_in_the_middle_of_a_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lists and the snapshot of a clean stop lie in the middle of the last segment; a crash follows."""
    config, play, folder = settings(index_interval_bytes=200), Play(), tmp_path / "logs"
    for epoch in range(3):
        engine = await open_engine(folder, config)
        await play.check(engine.logs[AT])
        await play.inside(engine.logs[AT], 1, b"before the stop", epoch=2 * epoch)
        await play.ends(engine.logs[AT], 1, commit=False, epoch=2 * epoch + 1)
        await play.inside(engine.logs[AT], 1, b"over the stop", epoch=2 * epoch + 1)
        await engine.close()
        engine = await open_engine(folder, config)
        await play.check(engine.logs[AT])
        await play.ends(engine.logs[AT], 1, commit=False, epoch=2 * epoch + 2)
        await play.plain(engine.logs[AT], b"behind")
        await engine.logs[AT].flush()
        crashed = tmp_path / f"crashed {epoch}"
        shutil.copytree(folder, crashed)
        await engine.close()
        folder = crashed
    engine = await open_engine(folder, config)
    await play.check(engine.logs[AT])
    assert len(engine.logs[AT].aborted_transactions(0, ALL)) == 6
    await engine.close()
    assert SEARCH not in caplog.text


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [missing, cut, flipped, empty])
@pytest.mark.parametrize("suffix", [".aborted", ".producers"])
async def test_small_files_that_are_lost_or_damaged_are_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, harm: Callable[[Path], None]
) -> None:
    play = Play()
    engine = await open_engine(tmp_path / "logs", FLUSHED)
    await interleaved(engine.logs[AT], play)
    await engine.close()
    names = sorted(path.name for path in (tmp_path / "logs" / str(AT)).glob(f"*{suffix}"))
    assert len(names) >= 2
    for number, name in enumerate(names):
        folder = tmp_path / f"harmed {number}"
        shutil.copytree(tmp_path / "logs", folder)
        harm(folder / str(AT) / name)
        caplog.clear()
        again = await open_engine(folder, FLUSHED)
        await play.check(again.logs[AT])
        assert (SEARCH in caplog.text) is (suffix == ".aborted")
        await again.close()
        caplog.clear()
        third = await open_engine(folder, FLUSHED)
        await play.check(third.logs[AT])
        assert SEARCH not in caplog.text, "the lists were written anew"
        await third.close()


async def test_all_small_files_may_be_lost_at_once(tmp_path: Path) -> None:
    play = Play()
    engine = await open_engine(tmp_path / "logs", FLUSHED)
    await interleaved(engine.logs[AT], play)
    await engine.close()
    for path in (tmp_path / "logs" / str(AT)).iterdir():
        if path.suffix not in (".log", ".json"):
            path.unlink()
    again = await open_engine(tmp_path / "logs", FLUSHED)
    await play.check(again.logs[AT])
    await again.close()


async def test_a_list_of_transactions_that_the_log_has_lost_is_not_believed(tmp_path: Path) -> None:
    """A list may reach the disk before the markers that it names; a power loss then leaves the list alone."""
    config, play, folder = settings(segment_bytes=1024), Play(), tmp_path / "logs"
    engine = await open_engine(folder, config)
    log = engine.logs[AT]
    await play.inside(log, 1, b"kept")
    await engine.close()
    engine = await open_engine(folder, config)
    log = engine.logs[AT]
    shutil.copytree(folder, tmp_path / "dark")
    await play.ends(log, 1, commit=False)
    while len(list((folder / str(AT)).glob("*.log"))) < 2:
        await play.plain(log, b"." * 400)
    await log.flush()
    name = f"{0:020d}.aborted"
    shutil.copy(folder / str(AT) / name, tmp_path / "dark" / str(AT) / name)
    await engine.close()
    again = await open_engine(tmp_path / "dark", config)
    del play.events[1:]
    await play.check(again.logs[AT])
    await again.close()


async def fill_for_compaction(log: Log) -> tuple[set[Seen], set[Seen]]:
    """What a read_committed client may be shown from now on, and what it must be shown."""
    committed: list[Seen] = []

    async def write(what: Awaitable[int], key: bytes, value: bytes, commit: bool = True) -> None:
        offset = await what
        if commit:
            committed.append(Seen(offset, key, value))

    for number in range(8):
        key, value, commit = b"k%d" % (number % 2), b"%d" % number + b"." * 150, number % 3 != 0
        await write(append(log, value, keys=[key]), key, value)
        inside = b"in " + value
        await write(txn_append(log, inside, producer=1, sequence=number, keys=[key]), key, inside, commit)
        await append(log, b"." * 300, keys=[b"filler"])
        await end(log, 1, commit=commit)
    fillers = {record for record in await read_committed(log) if record.key == b"filler"}
    last = {record.key: record for record in committed}
    return {*committed, *fillers}, set(last.values())


async def test_a_crash_at_any_step_of_a_compaction_with_aborted_transactions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps, clock = Steps(tmp_path), ManualClock(NOW_MS)
    engine = await opened(steps, COMPACTED, clock)
    log = engine.logs[AT]
    allowed, due = await fill_for_compaction(log)
    await log.flush()
    await engine._save(clean=False)
    log.configure(MERGED)
    await steps.watch(log.compact)
    assert len(log.producers.aborted) == 0
    await engine.close()
    for copy in steps.copies:
        again = await open_engine(copy / "logs", COMPACTED, clock)
        found = await read_committed(again.logs[AT])
        assert due <= set(found) <= allowed
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        await append(again.logs[AT], b"new", producer=1, sequence=8, keys=[b"new"])
        again.logs[AT].configure(MERGED)
        await again.logs[AT].compact()
        assert due <= set(await read_committed(again.logs[AT]))
        await again.close()
    assert SEARCH not in caplog.text


async def test_a_reader_in_the_middle_of_a_compaction_sees_nothing_aborted(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    engine = await opened(steps, COMPACTED)
    log = engine.logs[AT]
    allowed, due = await fill_for_compaction(log)
    await log.flush()
    log.configure(MERGED)
    partition = leading(log)
    loop = asyncio.get_running_loop()
    rounds: list[set[Seen]] = []

    async def read_on() -> set[Seen]:
        offset, found = log.start_offset, set()
        while offset < partition.last_stable_offset:
            got = await partition.read(offset, 700, committed_only=True)
            if not got.size:
                break
            assert got.aborted is not None
            found |= set(shown(content(got), got.aborted))
            offset = read_header(split(content(got))[-1]).next_offset
        return found

    def look(what: str, path: Path) -> None:
        if threading.current_thread().name.startswith("clean"):
            for segment in engine.logs[AT].segments[:-1]:
                segment.release()
            rounds.append(asyncio.run_coroutine_threadsafe(read_on(), loop).result(30))

    steps.files.on_operation = look
    assert await log.compact()
    steps.files.on_operation = None
    rounds.append(await read_on())
    assert len(rounds) > 10
    for found in rounds:
        assert due <= found <= allowed
    await engine.close()


@pytest.fixture(autouse=True)
def _warnings_are_caught(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
