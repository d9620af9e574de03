"""After a power loss, what was acknowledged as flushed is there: all of it, in order, once."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config.topic import TopicConfig
from penstock.ids import TopicPartition
from penstock.storage.contract import Log
from penstock.storage.faulty_files import FaultyFiles
from support.logs import AT, NOW_MS, TOPIC_ID, append, open_engine, read_all, read_around_damage, settings

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
FLUSHED = settings(flush_messages=1, segment_bytes=4096, index_interval_bytes=256)


class Cuts:
    """Takes what a disk could show at chosen operations, with what had been acknowledged by then."""

    def __init__(self, files: FaultyFiles, folder: Path, seed: int, every: int) -> None:
        self.acknowledged: dict[TopicPartition, list[bytes]] = {at: [] for at in PARTITIONS}
        self.taken: list[tuple[Path, dict[TopicPartition, list[bytes]]]] = []
        self._files = files
        self._folder = folder
        self._chance = random.Random(seed)
        self._every = every
        files.on_operation = self._look

    def _look(self, what: str, path: Path) -> None:
        with self._files.lock:  # operations come from several threads
            if self._chance.randrange(self._every):
                return
            known = {at: list(values) for at, values in self.acknowledged.items()}
            target = self._folder / f"cut-{len(self.taken)}"
            self._files.power_loss(self._chance.randrange(1 << 30), into=target)
            self.taken.append((target, known))


@pytest.mark.parametrize("seed", range(4))
async def test_everything_acknowledged_survives_in_order_and_once(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    configs: dict[TopicPartition, TopicConfig] = dict.fromkeys(PARTITIONS, FLUSHED)
    engine = await open_engine(root / "logs", configs, files=files)
    cuts = Cuts(files, tmp_path, seed, every=80)
    chance = random.Random(seed)

    async def produce(at: TopicPartition, producer: int) -> None:
        log = engine.logs[at]
        for sequence in range(40):
            value = b"%d-%d-" % (producer, sequence) + b"x" * chance.randrange(1500)
            await append(log, value, producer=producer, sequence=sequence)
            cuts.acknowledged[at].append(value)

    await asyncio.gather(
        *(produce(at, 10 * number + each) for number, at in enumerate(PARTITIONS) for each in range(3))
    )
    files.on_operation = None
    await engine.close()
    assert len(cuts.taken) > 5
    for folder, known in cuts.taken:
        again = await open_engine(folder / "logs", configs)
        for at, acknowledged in known.items():
            found, _ = await read_around_damage(again.logs[at])
            values = [record.value for record in found]
            assert len(set(values)) == len(values)
            places = [values.index(value) for value in acknowledged]
            for producer in range(100):
                own = [p for p, value in zip(places, acknowledged, strict=True) if value.startswith(b"%d-" % producer)]
                assert own == sorted(own)
        await again.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(8))
async def test_a_log_goes_on_after_any_power_loss(tmp_path: Path, seed: int) -> None:
    """Nothing is flushed here, so everything behind the last sync may go; what is left must be a log."""
    root = tmp_path / "data"
    root.mkdir()
    config = settings(segment_bytes=4096, index_interval_bytes=256)
    sent: list[bytes] = []
    for life in range(5):
        files = FaultyFiles(root)
        engine = await open_engine(root / "logs", config, files=files)
        log = engine.logs[AT]
        before, _ = await read_around_damage(log)
        assert [record.offset for record in before] == sorted({record.offset for record in before})
        assert all(record.value in sent for record in before)
        for number in range(30):
            value = b"%d-%d" % (life, number) + b"x" * 300
            sent.append(value)
            assert await append(log, value) >= len(before)
        after, _ = await read_around_damage(log)
        assert after[: len(before)] == before
        assert [record.value for record in after[len(before) :]] == sent[-30:]
        left = tmp_path / f"left-{life}"
        files.power_loss(seed * 100 + life, into=left)
        await engine.close()
        shutil.rmtree(root)
        left.rename(root)


@pytest.mark.parametrize("seed", range(4))
async def test_an_acknowledged_trim_is_never_undone(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    engine = await open_engine(root / "logs", settings(segment_bytes=4096), files=files)
    log = engine.logs[AT]
    for number in range(40):
        await append(log, b"%d" % number + b"x" * 300)
    await log.trim(37)
    files.power_loss(seed, into=tmp_path / "left")
    await engine.close()
    again = await open_engine(tmp_path / "left" / "logs", settings(segment_bytes=4096))
    assert again.logs[AT].start_offset == 37
    assert [record.offset for record in await read_all(again.logs[AT])] == [37, 38, 39]
    await again.close()


@pytest.mark.parametrize("seed", range(6))
async def test_a_start_that_retention_moved_does_not_outlive_the_log(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "data"
    root.mkdir()
    files, clock = FaultyFiles(root), ManualClock(NOW_MS)
    config = settings(segment_bytes=4096, retention_ms=1000)
    engine = await open_engine(root / "logs", config, clock, files)
    for number in range(40):
        await append(engine.logs[AT], b"%d" % number + b"x" * 300)
    clock.advance(5000)
    files.hold_syncs()
    retention = asyncio.ensure_future(engine.logs[AT].apply_retention())
    for _ in range(20):
        await asyncio.sleep(0)
    files.power_loss(seed, into=tmp_path / "early")
    files.release_syncs()
    await retention
    files.power_loss(seed, into=tmp_path / "late")
    await engine.close()
    for name in ("early", "late"):
        again = await open_engine(tmp_path / name / "logs", config, clock)
        log = again.logs[AT]
        assert log.start_offset <= log.end_offset
        end = log.end_offset
        assert await append(log, b"new", at_ms=clock.now_ms()) == end
        assert (await read_all(log, end))[0].value == b"new"
        await again.close()


async def test_a_created_log_and_its_flushed_records_survive(tmp_path: Path) -> None:
    """The folder's own name has to be synced too, not only what is in it."""
    root = tmp_path / "data"
    root.mkdir()
    files = FaultyFiles(root)
    engine = await open_engine(root / "logs", {}, files=files)
    log: Log = await engine.create(AT, TOPIC_ID, FLUSHED)
    await append(log, b"kept")
    for seed in range(10):
        files.power_loss(seed, into=tmp_path / f"left-{seed}")
    await engine.close()
    for seed in range(10):
        again = await open_engine(tmp_path / f"left-{seed}" / "logs", FLUSHED)
        assert [record.value for record in await read_all(again.logs[AT])] == [b"kept"]
        await again.close()
