"""The index on disk, compared with a plain set of what waits."""

from __future__ import annotations

import asyncio
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.delay.due_index import DueIndex, Moved
from penstock.delay.entries import RECURS, at_due, cancelled, delayed_to, due_of, is_cancel, pack, recurs
from penstock.delay.index_files import STATE_FILE, IndexFolder
from penstock.storage.files import Files

HOUR = 3_600_000
HASH = b"\x00\x01\x02\x03\x04\x05\x06\x07"


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2)


def place(tmp_path: Path, pool: ThreadPoolExecutor) -> IndexFolder:
    return IndexFolder(tmp_path, Files(), pool)


def runs_in(folder: Path) -> list[Path]:
    return list(folder.glob("*.due"))


async def opened(where: IndexFolder | None) -> DueIndex:
    index = DueIndex(where)
    await index.open()
    return index


async def taken(index: DueIndex, until_ms: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        await index.reach(until_ms + 1)
        more = index.wheel.take(until_ms, 1000)
        if not more and index.horizon_ms > until_ms:
            return found
        found += more


async def named(index: DueIndex, id_hash: bytes) -> list[bytes]:
    other = bytes([id_hash[0] ^ 1]) + id_hash[1:]
    return index.named(id_hash, await index.in_runs([id_hash, other]))


async def test_what_was_saved_is_there_after_a_restart(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    index = await opened(place(tmp_path, pool))
    entries = [pack(due * HOUR, due, 0, 10, 1) for due in range(1, 2000)]
    for entry in reversed(entries):
        index.add(entry)
    await index.save(77, {})
    index.add(pack(5, 5, 5, 5, 5))
    again = await opened(place(tmp_path, pool))
    assert again.read_from == 77
    assert await taken(again, 10_000 * HOUR) == entries


async def test_a_run_that_is_not_named_by_the_state_is_removed(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    index = await opened(place(tmp_path, pool))
    index.add(pack(HOUR, 1, 0, 10, 1))
    await index.save(1, {})
    (tmp_path / "00000000000000000099.due").write_bytes(b"half of a run")
    again = await opened(place(tmp_path, pool))
    assert len(await taken(again, 2 * HOUR)) == 1
    assert not (tmp_path / "00000000000000000099.due").exists()


@pytest.mark.parametrize("damage", ["state", "directory", "missing"])
async def test_an_index_that_is_not_sound_is_made_anew(tmp_path: Path, pool: ThreadPoolExecutor, damage: str) -> None:
    index = await opened(place(tmp_path, pool))
    index.add(pack(HOUR, 1, 0, 10, 1))
    await index.save(1, {})
    run = runs_in(tmp_path)[0]
    if damage == "state":
        (tmp_path / STATE_FILE).write_text("{")
    elif damage == "directory":
        content = bytearray(run.read_bytes())
        content[-20] ^= 1
        run.write_bytes(content)
    else:
        run.unlink()
    again = await opened(place(tmp_path, pool))
    assert again.read_from == -1
    assert await taken(again, 2 * HOUR) == []


async def test_a_name_is_found_in_memory_and_in_runs(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    index = await opened(place(tmp_path, pool))
    first, second, late = pack(HOUR, 1, 0, 10, 1), pack(HOUR, 2, 0, 10, 1), pack(HOUR, 9, 0, 10, 1)
    index.add(first, HASH)
    index.add(pack(HOUR, 1, 5, 10, 1), b"\xff" * 8)
    await index.save(1, {})
    index.add(second, HASH)
    index.add(late, HASH)
    assert await named(index, HASH) == [first, second, late]
    assert await named(index, b"\xff" * 8) == [pack(HOUR, 1, 5, 10, 1)]
    assert await named(index, b"\xfe" * 8) == []


async def test_many_runs_become_few(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    index = await opened(place(tmp_path, pool))
    chance = random.Random(1)
    entries = [pack(chance.randrange(1, 1000) * HOUR, number, 0, 10, 1) for number in range(4000)]
    for start in range(0, 4000, 250):
        for entry in entries[start : start + 250]:
            index.add(entry, HASH)
        await index.save(start, {})
        while await index.merge():
            pass
    assert len(runs_in(tmp_path)) <= 9
    assert await taken(index, 2000 * HOUR) == sorted(entries)


async def test_runs_of_what_was_delivered_are_removed(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    index = await opened(place(tmp_path, pool))
    for number in range(10):
        index.add(pack(HOUR + number, number, 0, 10, 1))
    await index.save(1, {})
    last = (await taken(index, 2 * HOUR))[-1]
    index.passed(last)
    await index.save(2, {})
    assert runs_in(tmp_path) == []
    assert index.lowest_base is None


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("on_disk", [True, False])
def test_the_index_gives_what_a_set_would(seed: int, on_disk: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        asyncio.run(_play(seed, IndexFolder(Path(folder), Files(), pool) if on_disk else None))


async def _play(seed: int, where: IndexFolder | None) -> None:
    chance = random.Random(seed)
    index = await opened(where)
    log: list[bytes] = []
    """All that was ever added, as the companion has it."""
    mark, saved_at, now = bytes(24), 0, 1
    for _ in range(400):
        waiting = {entry for entry in log if entry > mark and cancelled(entry) not in log and not is_cancel(entry)}
        step = chance.random()
        if step < 0.55:
            entry = pack(
                now + chance.choice([0, 5, 900, 70_000, HOUR, 900 * HOUR]), len(log), chance.randrange(5), 9, 1
            )
            log.append(entry)
            index.add(entry, HASH)
        elif step < 0.62 and waiting:
            victim = chance.choice(sorted(waiting))
            log.append(cancelled(victim))
            index.cancel(victim, HASH)
        elif step < 0.8:
            now += chance.choice([1, 50, 1000, 65_000, 2 * HOUR])
            due = sorted(entry for entry in waiting if due_of(entry) <= now)
            found = await taken(index, now)
            assert found == due
            if chance.random() < 0.3:
                index.rewind()
            elif found:
                mark = found[-1]
                index.passed(mark)
        elif step < 0.9:
            await index.save(len(log), {})
            saved_at = len(log)
            await index.merge()
        elif step < 0.95 and where is not None:
            index = await opened(where)
            assert index.read_from in (-1, saved_at)
            for entry in log[saved_at if index.read_from >= 0 else 0 :]:
                if is_cancel(entry):
                    index.cancel(next(found for found in log if cancelled(found) == entry), HASH)
                else:
                    index.add(entry, HASH)
            await index.reach(due_of(mark) + 1)
            index.passed(mark)
        else:
            assert await named(index, HASH) == sorted(waiting)
            assert index.pending == len(waiting)
            lowest = index.lowest_base
            assert lowest is not None or not waiting


async def test_without_a_disk_what_is_settled_is_forgotten() -> None:
    index = await opened(None)
    entries = [pack(due * HOUR, due, 0, 10, 1) for due in range(1, 6)]
    for entry in entries:
        index.add(entry, HASH)
    index.mark = entries[0]
    for entry in entries[1:3]:
        index.cancel(entry, HASH)
    assert index.lowest_base == 2
    await index.save(0, {})
    assert index.lowest_base == 4
    assert index.fresh == 0
    assert await named(index, HASH) == entries[3:]
    assert await taken(index, 9 * HOUR) == entries[3:]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_mark_that_goes_back_brings_nothing_back(seed: int, on_disk: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        asyncio.run(_play_with_resets(seed, IndexFolder(Path(folder), Files(), pool) if on_disk else None))


async def _play_with_resets(seed: int, where: IndexFolder | None) -> None:
    """What waits is a plain set; the mark jumps ahead with all that is due, and back."""
    chance = random.Random(seed)
    index = await opened(where)
    waiting: set[bytes] = set()
    now = 100 * HOUR
    for number in range(1, 500):
        step = chance.random()
        if step < 0.6:
            size = 9 | (RECURS if chance.random() < 0.2 else 0)
            entry = pack(now + chance.choice([1, 900, 70_000, HOUR, 90 * HOUR]), number, chance.randrange(5), size, 1)
            waiting.add(entry)
            index.add(entry, HASH)
        elif step < 0.66 and waiting:
            victim = chance.choice(sorted(waiting))
            waiting.discard(victim)
            index.cancel(victim, HASH)
        elif step < 0.76:
            now += chance.choice([1, 1000, 65_000, 2 * HOUR])
            found = await taken(index, now)
            assert found == sorted(entry for entry in waiting if due_of(entry) <= now)
            if found:
                index.passed(found[-1])
                waiting -= set(found)
        elif step < 0.84:
            assert await index.recurring() == sorted(filter(recurs, waiting))
            now = max(100 * HOUR, now - chance.choice([5000, HOUR, 50 * HOUR]))
            moved = [entry for entry in filter(recurs, sorted(waiting)) if chance.random() < 0.5]
            moves = [Moved(entry, delayed_to(entry, now + chance.randrange(1, HOUR)), HASH) for entry in moved]
            merging = asyncio.create_task(index.merge())
            await asyncio.sleep(0)
            await index.reset_mark(at_due(now), moves, number, {})
            await merging
            waiting = waiting - set(moved) | {move.new for move in moves}
            if where is not None:
                index = await opened(where)
                assert index.read_from == number
        elif step < 0.94:
            await index.save(number, {})
            if chance.random() < 0.1:
                await index.merge()
            if where is not None and chance.random() < 0.3:
                index = await opened(where)
        else:
            assert await named(index, HASH) == sorted(waiting)
            assert index.pending == len(waiting)
    assert await taken(index, 10_000 * HOUR) == sorted(waiting)
