"""A partition that others follow: what is acknowledged when, and how the in-sync set changes under it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from math import inf
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.cluster.metadata import PartitionImage
from penstock.config.broker import Limits, LogSettings
from penstock.errors import ApiError, Code, ConflictError, CoordinationError, StorageError, code_of
from penstock.ids import BrokerId, TopicPartition
from penstock.replication.divergence import Position
from penstock.replication.in_sync_sets import InSyncChange, InSyncKeeper
from penstock.replication.leader_lease import LeaderLease
from penstock.replication.leadership import Heard, LagRules
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.faulty_files import FaultyFiles
from penstock.storage.memory import MemoryEngine
from support.leading import leading
from support.logs import AT, NOW_MS, TOPIC_ID, batch, open_engine, settings

ME, OTHER = BrokerId(1), BrokerId(2)
BOTH = frozenset({ME, OTHER})
RULES = LagRules(max_ms=10_000, max_messages=0)
EPOCH = 4


def lead(partition: Partition, *in_sync: BrokerId) -> None:
    partition.lead(ME, PartitionImage(0, ME, EPOCH, (ME, OTHER), in_sync), BOTH, RULES)


def heard_at(followed_ms: float) -> Heard:
    heard = Heard()
    heard.followed_ms = followed_ms
    return heard


def fetch_end(partition: Partition) -> None:
    """The other asks for what comes next: it has everything."""
    end = partition.log.end_offset
    partition.fetched_by(OTHER, Position(end, EPOCH if end else -1), Heard())


@pytest.fixture
async def partition() -> AsyncIterator[Partition]:
    clock = ManualClock(NOW_MS)
    engine = MemoryEngine(LogSettings(), Limits(), clock)
    made = Partition(await engine.create(AT, TOPIC_ID, settings()), LeaderLease(clock, lambda: inf, 1_000))
    lead(made, ME, OTHER)
    yield made
    await engine.close()


async def until_soon(look: Callable[[], bool]) -> None:
    """What is under way in the same event loop gets its turns."""
    for _ in range(1000):
        if look():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def send(partition: Partition, sequence: int) -> int:
    made = memoryview(batch(b"v", producer=9, sequence=sequence))
    return (await partition.append(made, ALL_IN_SYNC)).last_offset


async def test_a_repeat_that_is_too_old_to_be_placed_is_answered_when_all_in_sync_have_it(partition: Partition) -> None:
    for sequence in range(7):
        await send(partition, sequence)
    repeat = asyncio.ensure_future(send(partition, 0))
    await asyncio.sleep(0)
    assert not repeat.done()
    fetch_end(partition)
    with pytest.raises(ApiError) as answer:
        await repeat
    assert answer.value.code is Code.DUPLICATE_SEQUENCE_NUMBER


class Tree:
    """Where in-sync sets are committed: it answers when it is told to."""

    def __init__(self, partition: Partition) -> None:
        self.asked: list[frozenset[BrokerId]] = []
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.keeper = InSyncKeeper(lambda: [partition], self._commit, self._applied, ManualClock(NOW_MS), 10_000)

    async def _commit(self, changes: Mapping[TopicPartition, InSyncChange]) -> None:
        self.asked += [change.in_sync for change in changes.values()]
        await self.outcome

    async def _applied(self, names: object) -> None:
        return


async def test_an_image_that_comes_before_the_answer_does_not_end_a_proposal(partition: Partition) -> None:
    lead(partition, ME)
    fetch_end(partition)
    tree = Tree(partition)
    tree.keeper.start()
    tree.keeper.look_soon()
    await until_soon(lambda: tree.asked == [BOTH])
    lead(partition, ME)
    await send(partition, 0)
    assert partition.high_watermark == 0
    lead(partition, ME, OTHER)
    tree.outcome.set_result(None)
    assert partition.leadership is not None
    leadership = partition.leadership
    await until_soon(lambda: leadership.proposed is None)
    assert partition.high_watermark == 0
    fetch_end(partition)
    assert partition.high_watermark == 1
    await tree.keeper.close()


@pytest.mark.parametrize("error, still_proposed", [(ConflictError("no"), None), (CoordinationError("who knows"), BOTH)])
async def test_a_proposal_ends_when_it_was_refused_but_not_when_nobody_knows(
    partition: Partition, error: CoordinationError, still_proposed: frozenset[BrokerId] | None
) -> None:
    lead(partition, ME)
    fetch_end(partition)
    tree = Tree(partition)
    tree.outcome.set_exception(error)
    tree.keeper.start()
    tree.keeper.look_soon()
    await until_soon(lambda: tree.asked == [BOTH])
    assert partition.leadership is not None
    leadership = partition.leadership
    await until_soon(lambda: leadership.proposed == still_proposed)
    tree.keeper.look_soon()
    await until_soon(lambda: tree.asked == [BOTH, BOTH])
    await tree.keeper.close()


async def test_a_leader_past_its_lease_leads_on_when_it_is_followed_again() -> None:
    """Else one late fetch while ZooKeeper is away would stop the partition until it is back."""
    clock = ManualClock(NOW_MS)
    engine = MemoryEngine(LogSettings(), Limits(), clock)
    partition = Partition(await engine.create(AT, TOPIC_ID, settings()), LeaderLease(clock, lambda: -inf, 1_000))
    lead(partition, ME, OTHER)
    with pytest.raises(ApiError) as refused:
        await send(partition, 0)
    assert refused.value.code is Code.NOT_LEADER_OR_FOLLOWER
    partition.fetched_by(OTHER, Position(0, -1), heard_at(clock.monotonic_ms()))
    assert await send(partition, 0) == 0
    clock.advance(1_001)
    with pytest.raises(ApiError):
        await send(partition, 1)
    partition.fetched_by(OTHER, Position(1, EPOCH), heard_at(clock.monotonic_ms()))
    assert await send(partition, 1) == 1
    await engine.close()


async def test_an_append_whose_leader_is_replaced_is_not_said_to_be_missing(partition: Partition) -> None:
    """The next leader may have it: a producer that is told NOT_LEADER may use its sequence numbers again."""
    lead(partition, ME, OTHER)
    offset = await send(partition, 0)
    waiting = asyncio.create_task(partition.acknowledged(offset, partition.term))
    await asyncio.sleep(0)
    assert not waiting.done()
    before = partition.term
    partition.follow(OTHER, EPOCH + 1)
    for late in (waiting, partition.acknowledged(offset, before)):
        with pytest.raises(ApiError) as caught:
            await late
        assert caught.value.code is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    with pytest.raises(ApiError) as caught:
        await send(partition, 1)
    assert caught.value.code is Code.NOT_LEADER_OR_FOLLOWER, "this one was not appended"
    assert partition.log.end_offset == 1


@pytest.fixture
async def synced(tmp_path: Path) -> AsyncIterator[tuple[Partition, FaultyFiles]]:
    """A partition that syncs every append, and its disk."""
    (tmp_path / "data").mkdir()
    files = FaultyFiles(tmp_path / "data")
    engine = await open_engine(tmp_path / "data" / "logs", settings(flush_messages=1), files=files)
    yield leading(engine.logs[AT], epoch=EPOCH), files
    await engine.close()


async def refusal_of(appending: Awaitable[object]) -> Code:
    """The code with which a producer is answered."""
    with pytest.raises((ApiError, StorageError)) as caught:
        await appending
    return code_of(caught.value)


async def test_an_append_whose_leader_is_replaced_during_its_sync_is_not_said_to_be_missing(
    synced: tuple[Partition, FaultyFiles],
) -> None:
    partition, files = synced
    await send(partition, 0)  # the first append also makes the files of the log
    syncing, go_on = threading.Event(), threading.Event()

    def hold(what: str, path: Path) -> None:
        if what == "sync":
            syncing.set()
            assert go_on.wait(30)

    files.on_operation = hold
    appending = asyncio.create_task(send(partition, 1))
    assert await asyncio.to_thread(syncing.wait, 30)
    partition.follow(OTHER, EPOCH + 1)
    go_on.set()
    assert await refusal_of(appending) is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert partition.log.end_offset == 2
    files.on_operation = None


async def test_an_append_whose_sync_fails_is_not_said_to_be_missing(synced: tuple[Partition, FaultyFiles]) -> None:
    """Followers may have fetched it, and one of them leads next."""
    partition, files = synced
    await send(partition, 0)  # the first append also makes the files of the log
    files.fail_next_sync()
    assert await refusal_of(send(partition, 1)) is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert await refusal_of(send(partition, 2)) is Code.KAFKA_STORAGE_ERROR, "this one was not appended"
    assert partition.log.end_offset == 2
