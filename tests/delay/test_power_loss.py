"""After a power loss at any moment, what was acknowledged is delivered, and nothing is delivered twice."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from penstock.errors import ApiError
from penstock.storage.faulty_files import FaultyFiles
from support.timers import HOUR_MS, MOVING, Shifted, send, started, until_delivered


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_acknowledged_is_delivered_once(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    clock = Shifted()
    running = await started(root / "logs", files, clock=clock, saving=MOVING)
    chance = random.Random(seed)
    acknowledged: set[bytes] = set()
    taken: list[tuple[Path, set[bytes]]] = []

    def look(what: str, path: Path) -> None:
        with files.lock:
            if chance.randrange(40) or len(taken) >= 10:
                return
            target = tmp_path / f"cut-{len(taken)}"
            known = set(acknowledged)
            files.power_loss(chance.randrange(1 << 30), into=target)
            taken.append((target, known))

    files.on_operation = look

    async def produce(producer: int) -> None:
        for number in range(12):
            messages = [
                (b"%d-%d-%d" % (producer, number, each), chance.choice([0, 1, 20, 60, 150, 150, HOUR_MS]))
                for each in range(4)
            ]
            await send(running.partition, messages, producer, 4 * number)
            acknowledged.update(value for value, _ in messages)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(produce(producer) for producer in range(4)))
    clock.ahead_ms = HOUR_MS
    await send(running.partition, [(b"end", 400)], 99, 0)
    counted = await until_delivered(running, b"end")
    files.on_operation = None
    await running.close()
    assert counted.keys() >= acknowledged and set(counted.values()) == {1}
    assert len(taken) >= 5
    for folder, known in taken:
        again = await started(folder / "logs", clock=clock, saving=MOVING)
        await send(again.partition, [(b"end again", 400)], 100, 0)
        counted = await until_delivered(again, b"end again")
        assert known - counted.keys() == set()
        assert [value for value, count in counted.items() if count > 1] == []
        await again.close()
        shutil.rmtree(folder)


async def test_a_repeat_is_found_whatever_of_it_waits(tmp_path: Path) -> None:
    running = await started(tmp_path / "logs")
    for _ in range(2):
        await send(running.partition, [(b"later", 200), (b"now", 0)], 7, 0)
    await send(running.partition, [(b"end", 400)], 7, 2)
    with pytest.raises(ApiError, match="sequence"):
        await send(running.partition, [(b"too early", 100)], 7, 9)
    assert await until_delivered(running, b"end") == Counter([b"now", b"later", b"end"])
    await running.close()
