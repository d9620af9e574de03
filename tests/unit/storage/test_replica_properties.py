"""Any history of a leader, and of a follower that copies it, parts from it, stops, crashes and comes back: in the end
the two are the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.config.topic import TopicConfig
from penstock.storage.contract import Log
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import AT, NOW_MS, append_batch, batch, open_engine, settings
from support.playing import copy_left_behind, play
from support.replicas import check_same, copy, reconcile
from support.transactions import end, read_committed, txn_batch

KEPT = settings(segment_bytes=1024, index_interval_bytes=100)
COMPACTED = settings(
    segment_bytes=1024, index_interval_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01"
)

PRODUCERS = st.integers(0, 3)
KEYS = st.integers(0, 4)
WRITES = st.one_of(
    st.tuples(st.just("plain"), KEYS),
    st.tuples(st.just("numbered"), KEYS),
    st.tuples(st.just("transactional"), PRODUCERS, KEYS),
    st.tuples(st.just("transactional"), PRODUCERS, KEYS),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
)
STEPS = st.one_of(
    WRITES,
    WRITES,
    WRITES,
    st.tuples(st.just("copy"), st.sampled_from([1, 700, 1 << 20]), st.integers(0, 100)),
    st.tuples(st.just("part"), st.lists(WRITES, min_size=1, max_size=12), st.lists(WRITES, max_size=6)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(st.just("compact")),
)
EXAMPLES = examples(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Writer:
    """Writes to a log what a leader of one epoch would: it knows of each producer what the log knows."""

    def __init__(self, log: Log, epoch: int) -> None:
        self._log = log
        self._epoch = epoch

    async def write(self, step: tuple[object, ...]) -> None:
        name, *details = step
        await getattr(self, f"_{name}")(*details)

    async def _plain(self, key: int) -> None:
        await append_batch(self._log, memoryview(batch(self._value(), keys=[b"%d" % key])), self._epoch)

    async def _numbered(self, key: int) -> None:
        _, sequence = self._state(10)
        made = batch(self._value(), keys=[b"%d" % key], producer=10, sequence=sequence)
        await append_batch(self._log, memoryview(made), self._epoch)

    async def _transactional(self, producer: int, key: int) -> None:
        epoch, sequence = self._state(producer)
        made = txn_batch(self._value(), keys=[b"%d" % key], producer=producer, epoch=epoch, sequence=sequence)
        await append_batch(self._log, memoryview(made), self._epoch, guard=self._log.producers.guard(producer))

    async def _end(self, producer: int, commit: bool) -> None:
        epoch, _ = self._state(producer)
        await end(self._log, producer, commit=commit, epoch=epoch + 1, leader_epoch=self._epoch)

    def _state(self, producer: int) -> tuple[int, int]:
        """The producer's epoch and next sequence."""
        for known, entry in self._log.producers.entries():
            if known == producer:
                return entry.epoch, entry.batches[-1].last_sequence + 1 if entry.batches else 0
        return 0, 0

    def _value(self) -> bytes:
        return b"%d of %d" % (self._log.end_offset, self._epoch) + b"." * 200


class Story:
    """Plays steps on a leader and its follower."""

    def __init__(self, root: Path, config: TopicConfig) -> None:
        self._root = root
        self._folder = root / "0"
        self._config = config
        self._clock = ManualClock(NOW_MS)
        self._lives = 0
        self._epoch = 0
        self._leader: SegmentedEngine
        self._follower: SegmentedEngine

    @property
    def leader(self) -> Log:
        return self._leader.logs[AT]

    @property
    def follower(self) -> Log:
        return self._follower.logs[AT]

    async def open(self) -> None:
        self._leader = await open_engine(self._root / "leader", self._config, self._clock)
        await self._start()

    async def close(self) -> None:
        await self._leader.close()
        await self._follower.close()

    async def finish(self) -> None:
        await self.check()
        await self._restart()
        await self.check()
        await self.close()

    async def play(self, step: tuple[object, ...]) -> None:
        name, *details = step
        if hasattr(self, f"_{name}"):
            await getattr(self, f"_{name}")(*details)
        else:
            await Writer(self.leader, self._epoch).write(step)

    async def check(self) -> None:
        await reconcile(self.leader, self.follower)
        await self._copy(1 << 20, 0)
        if "compact" not in self._config.cleanup_policy:
            await check_same(self.leader, self.follower)
            return
        assert self.follower.end_offset == self.leader.end_offset
        # Where an epoch began is known only as far as compaction has left its first batch.
        assert self.follower.epochs.latest == self.leader.epochs.latest
        assert self.follower.first_unstable_offset == self.leader.first_unstable_offset
        described = [
            {each.producer_id: each._replace(last_timestamp=0) for each in log.producers.describe()}
            for log in (self.leader, self.follower)
        ]
        assert described[0] == described[1]
        shown = [await read_committed(log) for log in (self.leader, self.follower)]
        latest = [{record.key: record for record in records} for records in shown]
        assert latest[0] == latest[1]

    async def _copy(self, max_bytes: int, torn: int) -> None:
        await copy(self.leader, self.follower, max_bytes, torn=torn)
        self.leader.saved_high_watermark = self.follower.saved_high_watermark = self.leader.end_offset

    async def _part(self, followers: list[tuple[object, ...]], leaders: list[tuple[object, ...]]) -> None:
        """The follower takes itself for the leader for a while; then the leader is elected again."""
        for step in followers:
            await Writer(self.follower, self._epoch + 1).write(step)
        self._epoch += 2
        for step in leaders:
            await Writer(self.leader, self._epoch).write(step)
        await reconcile(self.leader, self.follower)

    async def _restart(self) -> None:
        await self._follower.close()
        await self._start()

    async def _crash(self, is_noted: bool) -> None:
        """What a killed process leaves is what its files hold, with a checkpoint of now or one of long ago."""
        self._lives += 1
        await self.follower.flush()
        if is_noted:
            await self._follower._save(clean=False)
        crashed = self._root / str(self._lives)
        copy_left_behind(self._folder, crashed)
        await self._follower.close()
        shutil.rmtree(self._folder)
        self._folder = crashed
        await self._start()

    async def _compact(self) -> None:
        self._clock.advance(1000)
        await self.leader.compact()
        await self.follower.compact()

    async def _start(self) -> None:
        self._follower = await open_engine(self._folder, self._config, self._clock)


@EXAMPLES
@given(st.lists(STEPS, min_size=10, max_size=50))
def test_a_follower_is_what_its_leader_is(steps: list[tuple[object, ...]]) -> None:
    play(lambda folder: Story(folder, KEPT), steps)


@EXAMPLES
@given(st.lists(STEPS, min_size=10, max_size=50))
def test_a_follower_of_a_compacted_log_has_the_last_record_of_every_key(steps: list[tuple[object, ...]]) -> None:
    play(lambda folder: Story(folder, COMPACTED), steps)
