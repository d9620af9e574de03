"""Damage that is replaced by a copy: only if the copy is what was written, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.records.batch import stamp
from penstock.storage.contract import DamagedRange
from support.damage import flip, stored_batches
from support.logs import ALL, AT, append, batch, content, open_engine, read_all, read_around_damage, settings

CONFIG = settings(segment_bytes=8192, index_interval_bytes=1024)
VALUE = b"x" * 200
HURT = 7


async def damaged(folder: Path) -> tuple[bytes, bytes]:
    """A log of 20 batches, of which one is damaged: that batch, and the one behind it, as they were."""
    engine = await open_engine(folder, CONFIG)
    for _ in range(20):
        await append(engine.logs[AT], VALUE)
    await engine.close()
    batches = list(stored_batches(folder / "orders-0"))
    flip(batches[HURT], 100)
    return batches[HURT].content, batches[HURT + 1].content


async def test_a_copy_takes_the_place_of_what_is_damaged_for_good(tmp_path: Path) -> None:
    whole, _ = await damaged(tmp_path)
    for life in range(2):
        engine = await open_engine(tmp_path, CONFIG)
        log = engine.logs[AT]
        assert (await read_around_damage(log))[1] == ([HURT] if life == 0 else [])
        if life == 0:
            assert log.damage_at(HURT) == DamagedRange(HURT, HURT + 1, len(whole))
            assert await log.damaged_bytes(log.damage[0]) != whole
            assert await log.repair(log.damage[0], memoryview(whole))
        assert not log.damage and log.damage_at(HURT) is None
        assert [record.offset for record in await read_all(log)] == list(range(20))
        assert content(await log.read(HURT, 1, 20)) == whole
        await engine.close()


async def test_what_does_not_fit_is_not_written(tmp_path: Path) -> None:
    whole, following = await damaged(tmp_path)
    before = [path.read_bytes() for path in sorted((tmp_path / "orders-0").glob("*.log"))]
    broken = bytearray(whole)
    broken[100] ^= 1
    another_epoch = bytearray(whole)
    stamp(memoryview(another_epoch), HURT, 99)
    shorter = bytearray(batch(b"y" * 100))
    stamp(memoryview(shorter), HURT, 0)
    engine = await open_engine(tmp_path, CONFIG)
    log = engine.logs[AT]
    await read_around_damage(log)
    for copy in (bytes(broken), bytes(another_epoch), bytes(shorter), following, whole + following, whole[:-1], b""):
        assert not await log.repair(log.damage[0], memoryview(copy))
    assert not await log.repair(DamagedRange(3, 4, len(whole)), memoryview(whole)), "there is no damage"
    assert log.damage
    await engine.close()
    assert [path.read_bytes() for path in sorted((tmp_path / "orders-0").glob("*.log"))] == before


@pytest.mark.parametrize("count", [1, 3])
async def test_a_log_that_is_repaired_goes_on(tmp_path: Path, count: int) -> None:
    whole, _ = await damaged(tmp_path)
    engine = await open_engine(tmp_path, CONFIG)
    log = engine.logs[AT]
    await read_around_damage(log)
    for number in range(count):
        assert await append(log, VALUE) == 20 + number
    assert await log.repair(log.damage[0], memoryview(whole))
    assert (await log.read(0, ALL, 5)).size == 5 * len(whole)
    await engine.close()
    again = await open_engine(tmp_path, CONFIG)
    assert len(await read_all(again.logs[AT])) == 20 + count
    await again.close()
