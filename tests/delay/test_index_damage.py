"""An index that turns out to be damaged while it is used is made anew; nothing is lost or repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.delay import sorted_runs
from support.damage import flip, stored_batches
from support.timers import FEW_RUNS, HOUR_MS, Shifted, send, send_records, started, until_delivered, until_pending


@pytest.mark.parametrize("block", [0, 2])
async def test_a_damaged_block_costs_a_new_index_and_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(sorted_runs, "BLOCK_ITEMS", 4)
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock, saving=FEW_RUNS)
    values = [b"%d" % number for number in range(20)]
    await send_records(
        running.partition,
        [(value, (("penstock-delay", b"%d" % (HOUR_MS + number)),)) for number, value in enumerate(values)],
    )
    await until_pending(running, 20)
    await running.close()
    (run,) = (tmp_path / "logs").glob("*/*.due")
    content = bytearray(run.read_bytes())
    content[block * 4 * 24 + 5] ^= 1
    run.write_bytes(content)
    running = await started(tmp_path / "logs", clock=clock, saving=FEW_RUNS)
    clock.ahead_ms = HOUR_MS + 60_000
    await send(running.partition, [(b"end", 100)], 9, 0)
    assert await until_delivered(running, b"end") == Counter([*values, b"end"])
    await running.close()


async def test_a_damaged_companion_costs_its_batch_and_the_others_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Shifted()
    running = await started(tmp_path / "logs", clock=clock, saving=FEW_RUNS)
    for value in (b"first", b"second", b"third"):
        await send_records(running.partition, [(value, (("penstock-delay", b"%d" % HOUR_MS),))])
    await until_pending(running, 3)
    await running.close()
    for index in (tmp_path / "logs").glob("*/*.due"):
        index.unlink()
    (folder,) = (path for path in (tmp_path / "logs").iterdir() if ":" in path.name)
    (hurt,) = [batch for batch in stored_batches(folder) if b"second" in batch.content]
    flip(hurt, hurt.content.index(b"second"))
    running = await started(tmp_path / "logs", clock=clock, saving=FEW_RUNS)
    clock.ahead_ms = HOUR_MS + 60_000
    await send(running.partition, [(b"end", 100)], 9, 0)
    assert await until_delivered(running, b"end") == Counter([b"first", b"third", b"end"])
    assert "delayed messages are lost" in caplog.text
    await running.close()
