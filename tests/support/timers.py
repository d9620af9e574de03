"""A partition of a broker that is alone, in this process, with its timers: for tests of what is on its disk."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.cluster.metadata import PartitionImage
from penstock.delay.delays import Delays
from penstock.delay.timers import Saving
from penstock.ids import companion_of
from penstock.records.records import Headers, Record, build_batch
from penstock.replication.companion_pair import CompanionPair
from penstock.replication.partition import Partition
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.segmented.engine import SegmentedEngine
from support.leading import LAG_RULES, ME, for_ever
from support.logs import AT, TOPIC_ID, open_engine, read_all, settings
from support.waiting import PATIENCE_S

FLUSHED = settings(flush_messages=1, segment_bytes=4096)
OFTEN = Saving(entries=10, bytes=3000, every_ms=30)


HOUR_MS = 3_600_000
FEW_RUNS = Saving(entries=10_000)
MOVING = Saving(entries=10, bytes=3000, every_ms=20, move_every_ms=40, move_from_bytes=1)


class Shifted(SystemClock):
    """The machine's clock, some time ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Running(NamedTuple):
    """A partition of a broker that is alone, with its timers."""

    engine: SegmentedEngine
    delays: Delays
    partition: Partition

    async def close(self) -> None:
        await self.delays.close()
        await self.engine.close()

    async def values(self) -> list[bytes]:
        return [record.value or b"" for record in await read_all(self.partition.log)]


async def started(
    folder: Path, files: FaultyFiles | None = None, *, clock: Clock | None = None, saving: Saving = OFTEN
) -> Running:
    clock = clock or SystemClock()
    engine = await open_engine(folder, {AT: FLUSHED}, files=files, clock=clock)
    log = engine.logs[AT]

    async def make() -> Log:
        return await engine.create(companion_of(AT), TOPIC_ID, companion_config(FLUSHED))

    delays = Delays(clock, saving)
    partition = Partition(log, for_ever(), CompanionPair(log, engine.logs.get(companion_of(AT)), make), delays)
    latest = log.epochs.latest
    epoch = 0 if latest is None else latest + 1
    partition.lead(ME, PartitionImage(0, ME, epoch, (ME,), (ME,)), frozenset({ME}), LAG_RULES)
    delays.role_changed(partition)
    return Running(engine, delays, partition)


async def send(partition: Partition, messages: Sequence[tuple[bytes, int]], producer: int, sequence: int) -> None:
    """Sends one batch of values with delays, and returns when it is acknowledged."""
    records = [(value, (("penstock-delay", b"%d" % delay),) if delay else ()) for value, delay in messages]
    await send_records(partition, records, producer, sequence)


async def send_records(
    partition: Partition, records: Sequence[tuple[bytes, Headers]], producer: int = -1, sequence: int = -1
) -> None:
    """Sends one batch of values with headers, and returns when it is acknowledged."""
    batch = build_batch(
        [Record(None, value, headers, int(time.time() * 1000)) for value, headers in records],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence,
    )
    appended = await partition.append(memoryview(batch), -1)
    await partition.acknowledged(appended.last_offset, partition.term)


async def until_delivered(running: Running, value: bytes) -> Counter[bytes]:
    deadline = time.monotonic() + PATIENCE_S
    while value not in (found := await running.values()):
        assert time.monotonic() < deadline, f"{value!r} was not delivered"
        await asyncio.sleep(0.02)
    return Counter(found)


async def until_pending(running: Running, count: int) -> None:
    """Returns when so many messages are known to wait."""
    deadline = time.monotonic() + PATIENCE_S
    while [delivery.timers.index.pending for delivery in running.delays.deliveries()] != [count]:
        assert time.monotonic() < deadline, f"there are not {count} that wait"
        await asyncio.sleep(0.01)
