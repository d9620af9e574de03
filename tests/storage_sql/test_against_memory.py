"""A log in a database beside one in memory: whatever happens to both, readers and producers cannot tell them apart."""

from __future__ import annotations

import random

import pytest

from penstock.clock import ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError
from penstock.records.records import Record, build_batch
from penstock.sql.database import Database
from penstock.sql.groups import DatabaseGroups
from penstock.storage.contract import Log
from penstock.storage.memory import MemoryEngine
from penstock.storage.sql.engine import SqlEngine
from support.logs import ALL, AT, NOW_MS, TOPIC_ID, Seen, append_batch, batch, read_all, settings
from support.replicas import producers_of
from support.transactions import end, read_committed, txn_batch

from .conftest import CLUSTER

STEPS = 80
PRODUCERS = 5


class Pair:
    """Both logs, and one clock."""

    def __init__(self, database: Database, config: TopicConfig, cache_bytes: int) -> None:
        self._database = database
        self._config = config
        self._cache_bytes = cache_bytes
        self._clock = ManualClock(NOW_MS)
        self._epoch = 0
        self._sql: SqlEngine | None = None
        self.logs: list[Log] = []

    async def open(self) -> None:
        memory = MemoryEngine(LogSettings(), Limits(), self._clock)
        self.logs = [await memory.create(AT, TOPIC_ID, self._config)]
        await self.restart()

    async def restart(self) -> None:
        """Another engine takes the log in the database over, in the next epoch."""
        before = self._sql
        self._epoch += 1
        self._sql = SqlEngine(
            DatabaseGroups(self._database), LogSettings(), Limits(), self._clock, CLUSTER, cache_bytes=self._cache_bytes
        )
        await self._sql.open({})
        log = await self._sql.create(AT, TOPIC_ID, self._config)
        await log.take_over(self._epoch)
        self.logs[1:] = [log]
        if before is not None:
            await before.close()

    async def close(self) -> None:
        assert self._sql is not None
        await self._sql.close()

    async def append(self, made: bytearray, *, is_transactional: bool, producer: int) -> None:
        """Both take it, or refuse it in the same way."""
        results: list[object] = []
        for log in self.logs:
            guard = log.producers.guard(producer) if is_transactional else None
            try:
                results.append(await append_batch(log, memoryview(bytearray(made)), self._epoch, guard=guard))
            except ApiError as error:
                results.append(error.code)
        assert results[0] == results[1]

    async def end(self, producer: int, epoch: int, *, commit: bool) -> None:
        results: list[object] = []
        for log in self.logs:
            try:
                results.append(await end(log, producer, commit=commit, epoch=epoch, leader_epoch=self._epoch))
            except ApiError as error:
                results.append(error.code)
        assert results[0] == results[1]

    async def trim(self, offset: int) -> None:
        for log in self.logs:
            await log.trim(offset)

    async def check(self, *, is_compacted: bool) -> None:
        memory, sql = self.logs
        assert (sql.start_offset, sql.end_offset, sql.visible_end) == (
            memory.start_offset,
            memory.end_offset,
            memory.end_offset,
        )
        assert producers_of(sql) == producers_of(memory)
        assert sql.epochs.starts == memory.epochs.starts
        assert sql.first_unstable_offset == memory.first_unstable_offset
        if is_compacted:
            # Which records a pass reaches depends on where segments end; what counts in the end is the last of a key.
            assert last_of_each_key(await read_committed(sql)) == last_of_each_key(await read_committed(memory))
            return
        assert await read_all(sql) == await read_all(memory)
        assert await read_committed(sql) == await read_committed(memory)
        assert sql.aborted_transactions(0, ALL) == memory.aborted_transactions(0, ALL)
        assert await sql.find_max_timestamp() == await memory.find_max_timestamp()
        for time in range(0, 60, 7):
            assert await sql.find_time(NOW_MS + time) == await memory.find_time(NOW_MS + time)


def last_of_each_key(records: list[Seen]) -> dict[bytes | None, Seen]:
    return {record.key: record for record in records}


@pytest.mark.parametrize("seed", range(4))
async def test_a_log_in_a_database_is_like_one_in_memory(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    is_compacted = seed == 3
    policy = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"} if is_compacted else {}
    config = settings(segment_bytes=1024, retention_ms=-1, **policy)
    pair = Pair(database, config, cache_bytes=[0, 600, 1 << 20, 0][seed])
    await pair.open()
    sequences = dict.fromkeys(range(PRODUCERS), 0)
    epochs = dict.fromkeys(range(PRODUCERS), 0)
    for _ in range(STEPS):
        producer = dice.randrange(PRODUCERS)
        count = dice.randint(1, 4)
        keys = [b"k%d" % dice.randrange(6) for _ in range(count)]
        values = [dice.choice([None, b"", b"v%d" % dice.randrange(1000), b"x" * 200]) for _ in range(count)]
        at_ms = NOW_MS + dice.randrange(60)
        match dice.choice(
            ["plain", "plain", "idempotent", "txn", "txn", "end", "restart", "trim", "compact", "headers"]
        ):
            case "plain":
                await pair.append(batch(*values, keys=keys, at_ms=at_ms), is_transactional=False, producer=-1)
            case "headers":
                headers = (("penstock-tags", b"a"), ("x", dice.choice([None, b"\xff", b"y"])))
                made = build_batch([Record(b"h", b"v", headers, at_ms)])
                await pair.append(made, is_transactional=False, producer=-1)
            case "idempotent":
                # Sometimes a repeat, sometimes out of order.
                sequence = max(0, sequences[producer] - dice.choice([0, 0, 0, 1, -1]))
                name = 100 + producer
                made = batch(values[0], keys=keys[:1], producer=name, sequence=sequence, at_ms=at_ms)
                await pair.append(made, is_transactional=False, producer=name)
                entry = pair.logs[0].producers.entry(name)
                sequences[producer] = entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0
            case "txn":
                entry = pair.logs[0].producers.entry(producer)
                sequence = entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0
                made = txn_batch(
                    *values, keys=keys, producer=producer, epoch=epochs[producer], sequence=sequence, at_ms=at_ms
                )
                await pair.append(made, is_transactional=True, producer=producer)
            case "end":
                epochs[producer] += dice.randrange(2)
                await pair.end(producer, epochs[producer], commit=dice.random() < 0.5)
            case "restart":
                await pair.restart()
            case "trim" if not is_compacted and dice.random() < 0.4:
                start, stop = pair.logs[0].start_offset, pair.logs[0].end_offset
                await pair.trim(dice.randint(start, stop))
            case "compact" if is_compacted:
                for log in pair.logs:
                    await log.compact()
        await pair.check(is_compacted=is_compacted)
    await pair.close()
