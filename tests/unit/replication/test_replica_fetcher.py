"""Which partitions a follower asks its leader for: new replicas within their limits, the others always."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.ids import BrokerId, TopicPartition
from penstock.net.peer import Peer
from penstock.parts import read_parts
from penstock.protocol import fetch
from penstock.protocol.fetch import FetchPartition, FetchResult
from penstock.protocol.replica_fetch import VERSION, ReplicaResult
from penstock.replication.replica_fetcher import FetchRules, Pace, ReplicaFetcher
from penstock.replication.throttle import FULL_S, Throttle

TOPIC_ID = bytes(range(16))
OLD, NEW, OTHER_NEW = (TopicPartition("t", index) for index in range(3))
RULES = FetchRules(
    wait_ms=50, partition_bytes=100_000, answer_bytes=1_000_000, first_back_off_s=0.01, back_off_s=0.05, lag_time_s=60
)
BATCH = 100


class Copy:
    """A follower's log that knows only how long it is: an offset is a byte."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.end = 0
        self.leader_epoch = 0
        self.can_follow = True

    def wanted(self, max_bytes: int) -> FetchPartition:
        return FetchPartition("t", TOPIC_ID, self._index, 0, self.end, -1, 0, max_bytes)

    async def take(self, asked: FetchPartition, result: ReplicaResult) -> bool:
        self.end += len(result.records)
        return True


class Leader:
    """Answers fetches as a leader with batches of one size would, and notes what it was asked for."""

    def __init__(self) -> None:
        self.ends = {0: 0, 1: 0, 2: 0}
        self.batch = BATCH
        self.asked: list[dict[int, int]] = []
        """Of every request: the largest size of each partition."""
        self.grown = asyncio.Event()

    def grow(self, index: int, count: int) -> None:
        self.ends[index] += count
        self.grown.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                correlation_id, name_length = struct.unpack_from(">ih", frame, 4)
                request = fetch.decode_request(VERSION, frame, 8 + 2 + name_length + 1)
                self.asked.append({each.index: each.max_bytes for each in request.partitions})
                results = [self._read(each) for each in request.partitions]
                if not any(each.size for each in results):
                    self.grown.clear()
                    try:
                        await asyncio.wait_for(self.grown.wait(), request.max_wait_ms / 1000)
                    except TimeoutError:
                        pass
                    results = [self._read(each) for each in request.partitions]
                body = read_parts(fetch.encode_response(VERSION, correlation_id, results))
                writer.write(body)
        except (EOFError, OSError):
            writer.close()

    def _read(self, wanted: FetchPartition) -> FetchResult:
        end = self.ends[wanted.index]
        count = max(self.batch, wanted.max_bytes // self.batch * self.batch)
        data = bytes(min(count, end - wanted.fetch_offset))
        return FetchResult(None, wanted.topic_id, wanted.index, 0, end, end, 0, None, -1, (data,), len(data))


class Stage:
    """One fetcher that follows one leader; `rate` is the limit for what is new."""

    def __init__(self, leader: Leader, address: tuple[str, int]) -> None:
        self.leader = leader
        self.copies = {at: Copy(at.partition) for at in (OLD, NEW, OTHER_NEW)}
        self.new = {NEW, OTHER_NEW}
        self.rate: int | None = 0
        pace = Pace(is_slowed=lambda at: at in self.new, throttles=(Throttle(lambda: self.rate),))
        peer = Peer(*address, "penstock-2", max_answer_bytes=1 << 22, timeout_s=10)
        self.fetcher = ReplicaFetcher(BrokerId(2), lambda: 1, peer, "test", RULES, pace)

    def follow(self, *which: TopicPartition) -> None:
        self.fetcher.follow({at: self.copies[at] for at in which})

    async def until(self, look: Callable[[], bool]) -> None:
        for _ in range(2_000):
            if look():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("not within 10 s")

    async def caught_up(self, *which: TopicPartition) -> None:
        await self.until(lambda: all(self.copies[at].end == self.leader.ends[at.partition] for at in which))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    leader = Leader()
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    made = Stage(leader, server.sockets[0].getsockname())
    yield made
    await made.fetcher.close()
    server.close()


async def test_who_is_in_sync_does_not_wait_for_who_is_slowed(stage: Stage) -> None:
    stage.leader.grow(1, 10_000)
    stage.follow(OLD, NEW)
    for _ in range(3):
        stage.leader.grow(0, 10 * BATCH)
        await stage.caught_up(OLD)
    assert all(asked.keys() == {0} for asked in stage.leader.asked)
    assert stage.copies[NEW].end == 0


async def test_a_limit_that_is_raised_is_noticed_also_by_who_follows_nothing_else(stage: Stage) -> None:
    stage.leader.grow(1, 10 * BATCH)
    stage.follow(NEW)
    for _ in range(10):
        await asyncio.sleep(0)
    stage.rate = 1_000_000
    await stage.caught_up(NEW)


async def test_no_more_is_asked_for_than_there_is_room_for(stage: Stage) -> None:
    stage.rate = 100_000
    stage.leader.grow(1, 60_000)
    stage.leader.grow(2, 60_000)
    stage.follow(OLD, NEW, OTHER_NEW)
    await stage.caught_up(NEW, OTHER_NEW)
    slowed = [[size for index, size in asked.items() if index in (1, 2)] for asked in stage.leader.asked]
    # Who has caught up is asked for like any other.
    slowed = [[size for size in sizes if size != RULES.partition_bytes] for sizes in slowed]
    assert sum(map(sum, slowed)) >= 60_000
    assert all(sum(sizes) <= stage.rate * FULL_S for sizes in slowed)


async def test_those_that_are_slowed_take_turns(stage: Stage) -> None:
    stage.rate = 40_000
    stage.leader.grow(1, 30_000)
    stage.leader.grow(2, 30_000)
    stage.follow(NEW, OTHER_NEW)
    await stage.until(lambda: len(stage.leader.asked) >= 2)
    assert [list(asked) for asked in stage.leader.asked[:2]] == [[1], [2]]


async def test_a_batch_larger_than_the_limit_passes(stage: Stage) -> None:
    stage.rate = 10_000
    stage.leader.batch = 5_000
    stage.leader.grow(1, 5_000)
    stage.follow(OLD, NEW)
    await stage.caught_up(NEW)


async def test_who_has_caught_up_is_slowed_no_more(stage: Stage) -> None:
    stage.rate = 100_000
    stage.leader.grow(1, 10 * BATCH)
    stage.follow(OLD, NEW)
    # Asked for like any other: it is known to have caught up.
    await stage.until(lambda: any(asked.get(1) == RULES.partition_bytes for asked in stage.leader.asked))
    stage.rate = 0
    stage.leader.grow(1, 100 * BATCH)
    await stage.caught_up(NEW)


async def test_without_a_limit_all_are_asked_for_at_once(stage: Stage) -> None:
    stage.rate = None
    stage.follow(OLD, NEW, OTHER_NEW)
    await stage.until(lambda: bool(stage.leader.asked))
    assert sorted(stage.leader.asked[0]) == [0, 1, 2]
