"""What one replica has lost is taken from another; what nobody has is stepped over, and said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.cluster.metadata import PartitionImage
from penstock.errors import PeerError
from penstock.ids import BrokerId
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.divergence import Position
from penstock.replication.leadership import Heard
from penstock.replication.lost_records import LostRange
from penstock.replication.partition import Partition
from penstock.replication.state_log import StateLog
from penstock.storage.contract import Log
from penstock.storage.segmented.engine import SegmentedEngine
from support.damage import flip, stored_batches
from support.leading import LAG_RULES, for_ever
from support.logs import ALL, AT, EPOCH, NOW_MS, append, content, open_engine, read_around_damage, settings

ME, OTHER = BrokerId(1), BrokerId(2)
CONFIG = settings()
HURT = 1
VALUES = [b"first", b"second", b"third"]


class Pair:
    """A leader whose second record is damaged, and what its follower has."""

    def __init__(self, engine: SegmentedEngine, other: SegmentedEngine) -> None:
        self.partition = Partition(engine.logs[AT], for_ever())
        image = PartitionImage(0, ME, EPOCH, (ME, OTHER), (ME, OTHER))
        self.partition.lead(ME, image, frozenset({ME, OTHER}), LAG_RULES)
        self.partition.fetched_by(OTHER, Position(3, EPOCH), Heard())
        self.other: Log = other.logs[AT]
        self.asked = 0
        self.repair = DamageRepair(lambda: [self.partition], self._fetch)

    async def _fetch(self, broker: BrokerId, partition: Partition, offset: int, max_bytes: int) -> memoryview:
        assert broker == OTHER and partition is self.partition
        self.asked += 1
        found = await self.other.read(offset, max_bytes, self.other.end_offset)
        return memoryview(content(found))

    async def replayed(self) -> list[bytes | LostRange]:
        log = StateLog(self.partition, ManualClock(NOW_MS), self.repair)
        found: list[bytes | LostRange] = []
        async for batch in log.replay():
            found += [batch] if isinstance(batch, LostRange) else [key for key, _ in batch.records]
        return found


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    engine = await open_engine(tmp_path / "leader", CONFIG)
    other = await open_engine(tmp_path / "follower", CONFIG)
    for value in VALUES:
        await append(engine.logs[AT], value, keys=[value])
    everything = content(await engine.logs[AT].read(0, ALL, 3))
    await other.logs[AT].append_as_is(memoryview(everything))
    await engine.close()
    flip(list(stored_batches(tmp_path / "leader" / "orders-0"))[HURT], len(everything) // 3 - 3)
    engine = await open_engine(tmp_path / "leader", CONFIG)
    yield Pair(engine, other)
    await engine.close()
    await other.close()


async def test_damaged_records_are_those_of_the_follower_from_then_on(pair: Pair) -> None:
    assert (await read_around_damage(pair.partition.log))[1] == [HURT]
    (damage,) = pair.partition.log.damage
    copy = await pair.repair.copy_of(pair.partition, damage)
    assert copy == content(await pair.other.read(HURT, 1, 3))
    assert not pair.partition.log.damage and pair.repair.repaired == 1
    assert [record.value for record in (await read_around_damage(pair.partition.log))[0]] == VALUES


async def test_a_shard_is_loaded_with_what_the_follower_has(pair: Pair) -> None:
    assert await pair.replayed() == VALUES
    assert not pair.partition.log.damage
    assert await pair.replayed() == VALUES
    assert pair.asked == 1


async def test_a_shard_is_loaded_with_a_copy_that_does_not_fit_its_log(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the follower had been compacted: nothing of the second record is left there."""
    batches = [content(await pair.other.read(offset, 1, 3)) for offset in (0, 2)]
    await pair.other.begin_at(0)
    for batch in batches:
        await pair.other.append_as_is(memoryview(batch))
    for _ in range(2):
        assert await pair.replayed() == [b"first", b"third"]
    assert pair.partition.log.damage and not pair.repair.repaired
    assert caplog.text.count("does not fit, because") == 1


async def test_what_nobody_has_is_stepped_over_and_named(pair: Pair) -> None:
    alone = PartitionImage(0, ME, EPOCH, (ME,), (ME,))
    pair.partition.lead(ME, alone, frozenset({ME}), LAG_RULES)
    first, lost, third = await pair.replayed()
    assert (first, third) == (b"first", b"third")
    assert isinstance(lost, LostRange)
    assert (lost.damage.first_offset, lost.damage.resumes_at) == (HURT, HURT + 1)
    assert (lost.keys, lost.is_complete) == ([b"second"], True)
    assert pair.asked == 0


async def test_a_broker_that_does_not_answer_is_no_harm(pair: Pair) -> None:
    await read_around_damage(pair.partition.log)

    async def nobody(*_: object) -> memoryview:
        raise PeerError("gone")

    repair = DamageRepair(lambda: [pair.partition], nobody)
    assert await repair.copy_of(pair.partition, pair.partition.log.damage[0]) is None
    assert pair.partition.log.damage
