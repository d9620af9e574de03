"""Any interleaving of producers, markers, rolls, restarts, crashes and compactions: a read_committed client shows what
was committed, in order, and nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code
from penstock.storage.contract import Log
from penstock.storage.producers import BATCHES_KEPT
from penstock.storage.segmented.engine import SegmentedEngine
from support.logs import AT, EPOCH, NOW_MS, append, append_batch, open_engine, settings
from support.playing import copy_left_behind, play
from support.transactions import end, read_committed, txn_append, txn_batch

KEPT = settings(segment_bytes=1024, index_interval_bytes=100)
COMPACTED = settings(
    segment_bytes=1024,
    index_interval_bytes=100,
    cleanup_policy="compact",
    min_cleanable_dirty_ratio="0.01",
    delete_retention_ms=1000,
)
MERGED = settings(
    segment_bytes=4096, cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", delete_retention_ms=1000
)

PRODUCERS = st.integers(0, 3)
KEYS = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("plain"), KEYS),
    st.tuples(st.just("numbered"), KEYS),
    st.tuples(st.just("transactional"), PRODUCERS, KEYS),
    st.tuples(st.just("transactional"), PRODUCERS, KEYS),
    st.tuples(st.just("transactional"), PRODUCERS, KEYS),
    st.tuples(st.just("end"), PRODUCERS, st.booleans(), st.booleans()),
    st.tuples(st.just("end"), PRODUCERS, st.booleans(), st.booleans()),
    st.tuples(st.just("again"), PRODUCERS, st.integers(1, 8)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(
        st.just("crash without"),
        st.booleans(),
        st.sampled_from([".aborted", ".producers"]),
        st.integers(0, 9),
        st.booleans(),
    ),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("trim")),
)
EXAMPLES = examples(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Model:
    """What should be: records in the order of the log, and for each transaction whether it was committed."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes, bytes, int | None]] = []
        """Offset, key, value, and the number of its transaction."""
        self.outcomes: dict[int, bool] = {}
        self.open: dict[int, int] = {}
        """By producer, the number of its transaction."""
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.sent: dict[int, list[int]] = {}
        """By producer, the offsets of the batches of the transaction that it has open."""
        self.last: dict[int, int] = {}
        """By producer, the offset of its last batch or marker."""
        self.transactions = 0

    def first_open(self) -> int | None:
        return min((r[0] for r in self.records if r[3] is not None and r[3] in self.open.values()), default=None)

    def committed(self, start: int) -> list[tuple[int, bytes, bytes]]:
        stop = self.first_open()
        return [
            (offset, key, value)
            for offset, key, value, transaction in self.records
            if start <= offset and (stop is None or offset < stop)
            if transaction is None or self.outcomes[transaction]
        ]


class Story:
    """Plays steps on a log and its model."""

    def __init__(self, folder: Path, config: TopicConfig) -> None:
        self._root = folder
        self._folder = folder / "0"
        self._config = config
        self._clock = ManualClock(NOW_MS)
        self._starts = 0
        self._engine: SegmentedEngine
        self.model = Model()

    @property
    def log(self) -> Log:
        return self._engine.logs[AT]

    async def open(self) -> None:
        self._engine = await open_engine(self._folder, self._config, self._clock)

    async def close(self) -> None:
        await self._engine.close()

    async def finish(self) -> None:
        await self.check()
        await self.close()

    async def play(self, step: tuple[object, ...]) -> None:
        name, *details = step
        await getattr(self, f"_{str(name).replace(' ', '_')}")(*details)

    async def check(self) -> None:
        log, model = self.log, self.model
        for producer in range(4):
            assert log.producers.has_open(producer, model.epochs.get(producer, 0)) is (producer in model.open)
        assert log.first_unstable_offset == model.first_open()
        expected = model.committed(log.start_offset)
        for max_bytes in (1, 300, 1 << 20):
            found = [tuple(record) for record in await read_committed(log, max_bytes=max_bytes)]
            if "compact" not in self._config.cleanup_policy:
                assert found == expected
                continue
            assert found == sorted(set(found) & set(expected)), "in order, and nothing that was not committed"
            last = {key: (offset, key, value) for offset, key, value in expected}
            assert set(last.values()) <= set(found), "the last record of every key is there"

    async def _plain(self, key: int) -> None:
        self._record(key, None, await append(self.log, self._value(), keys=[b"%d" % key]))

    async def _numbered(self, key: int) -> None:
        sequence = self.model.sequences.get(10, 0)
        offset = await append(self.log, self._value(), keys=[b"%d" % key], producer=10, sequence=sequence)
        self.model.sequences[10] = sequence + 1
        self._record(key, None, offset)

    async def _transactional(self, producer: int, key: int) -> None:
        model = self.model
        if producer not in model.open:
            model.transactions += 1
            model.open[producer] = model.transactions
        sequence = model.sequences.get(producer, 0)
        offset = await txn_append(
            self.log,
            self._value(),
            keys=[b"%d" % key],
            producer=producer,
            epoch=model.epochs.get(producer, 0),
            sequence=sequence,
        )
        model.sequences[producer] = sequence + 1
        model.sent.setdefault(producer, []).append(offset)
        model.last[producer] = offset
        self._record(key, model.open[producer], offset)

    async def _again(self, producer: int, back: int) -> None:
        """Sends one of the last batches of a producer again."""
        log, model = self.log, self.model
        sequence = model.sequences.get(producer, 0) - back
        if sequence < 0:
            return
        made = txn_batch(
            self._value(), keys=[b"0"], producer=producer, epoch=model.epochs.get(producer, 0), sequence=sequence
        )
        sent, end_offset = model.sent.get(producer, []), log.end_offset
        try:
            appended = await append_batch(log, memoryview(made), EPOCH, guard=log.producers.guard(producer))
        except ApiError as error:
            # Clients take a duplicate for success.
            is_in_transaction = back <= len(sent)
            assert not is_in_transaction or back > BATCHES_KEPT
            assert is_in_transaction or error.code is not Code.DUPLICATE_SEQUENCE_NUMBER
        else:
            assert appended.is_repeat and back <= len(sent) and appended.base_offset == sent[-back]
        assert log.end_offset == end_offset

    async def _end(self, producer: int, commit: bool, bump: bool) -> None:
        model = self.model
        if bump:
            model.epochs[producer] = model.epochs.get(producer, 0) + 1
            model.sequences[producer] = 0
        await end(self.log, producer, commit=commit, epoch=model.epochs.get(producer, 0))
        model.last[producer] = self.log.end_offset - 1
        model.sent.pop(producer, None)
        transaction = model.open.pop(producer, None)
        if transaction is not None:
            model.outcomes[transaction] = commit

    async def _restart(self) -> None:
        await self.close()
        await self.open()
        await self.check()

    async def _crash(self, is_noted: bool) -> None:
        await self._die(is_noted)
        await self.open()
        if not is_noted:
            # Of one whose last batch was trimmed since the checkpoint nothing is left: it begins a new epoch.
            for producer, offset in self.model.last.items():
                if offset < self.log.start_offset:
                    self.model.epochs[producer] = self.model.epochs.get(producer, 0) + 1
                    self.model.sequences[producer] = 0
        await self.check()

    async def _crash_without(self, is_noted: bool, suffix: str, number: int, is_cut: bool) -> None:
        await self._die(is_noted)
        files = sorted((self._folder / str(AT)).glob(f"*{suffix}"))
        for path in files[number : number + 1] or files[-1:]:
            if is_cut:
                path.write_bytes(path.read_bytes()[:-1])
            else:
                path.unlink()
        if suffix == ".producers":
            # Of one that sent only what was trimmed since, nothing is left: it gets a new epoch and begins anew.
            for producer in set(range(4)) - self.model.open.keys():
                self.model.epochs[producer] = self.model.epochs.get(producer, 0) + 1
                self.model.sequences[producer] = 0
        await self.open()
        await self.check()

    async def _compact(self, merge: bool) -> None:
        self._clock.advance(700)
        if "compact" in self._config.cleanup_policy:
            self.log.configure(MERGED if merge else COMPACTED)
            await self.log.compact()
            await self.check()

    async def _trim(self) -> None:
        first = self.model.first_open()
        if "delete" in self._config.cleanup_policy:
            middle = (self.log.start_offset + self.log.end_offset) // 2
            await self.log.trim(middle if first is None else min(middle, first))

    async def _die(self, is_noted: bool) -> None:
        """What a killed process leaves is what its files hold, with a checkpoint of now or one of long ago."""
        self._starts += 1
        await self.log.flush()
        if is_noted:
            await self._engine._save(clean=False)
        crashed = self._root / str(self._starts)
        copy_left_behind(self._folder, crashed)
        await self.close()
        shutil.rmtree(self._folder)
        self._folder = crashed

    def _record(self, key: int, transaction: int | None, offset: int) -> None:
        self.model.records.append((offset, b"%d" % key, self._value(), transaction))

    def _value(self) -> bytes:
        return b"%d" % len(self.model.records) + b"." * 200


@EXAMPLES
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_what_is_committed_is_shown_in_order(steps: list[tuple[object, ...]]) -> None:
    play(lambda folder: Story(folder, KEPT), steps)


@EXAMPLES
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_compaction_keeps_the_last_committed_record_of_every_key(steps: list[tuple[object, ...]]) -> None:
    play(lambda folder: Story(folder, COMPACTED), steps)


TRANSACTION, MARKER, PLAIN = ("transactional", 0, 0), ("end", 0, True, False), ("plain", 0)
ENDED_BELOW_THE_START = [
    TRANSACTION,
    ("restart",),  # leaves a snapshot with the transaction open
    MARKER,
    *[PLAIN] * 4,
    ("crash", False),  # takes the snapshot behind the marker
    ("trim",),
    ("trim",),  # takes the segment with the marker
]


def test_a_transaction_whose_marker_was_trimmed_is_not_open_after_a_crash() -> None:
    play(lambda folder: Story(folder, KEPT), [*ENDED_BELOW_THE_START, ("crash", False)])


def test_the_sequences_of_a_producer_outlive_its_trimmed_batches_and_two_crashes() -> None:
    play(lambda folder: Story(folder, KEPT), [*ENDED_BELOW_THE_START, ("crash", True), TRANSACTION, MARKER])


def test_a_transaction_whose_marker_was_trimmed_is_not_open_after_a_crash_that_takes_the_last_snapshot() -> None:
    lost = ("crash without", True, ".producers", 9, True)
    play(lambda folder: Story(folder, KEPT), [*ENDED_BELOW_THE_START, lost])
