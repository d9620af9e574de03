"""Shared storage without a database: a store in memory that the engines of several brokers open.

What a database would keep is a row a log: the epoch of its leader, and the batches that are committed. `secure` commits
what was written since, in the epoch in which the log was taken over, or takes it back if there is a later one. What a
companion has got is committed with the log that it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.clock import Clock, ManualClock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicId, TopicPartition, companion_of
from penstock.storage.companions import companion_config
from penstock.storage.contract import Log, StrayLog
from penstock.storage.memory import MemoryEngine, MemoryLog
from support.logs import NOW_MS

Key = tuple[TopicId, TopicPartition]


@dataclass(slots=True)
class Row:
    """One log as it is stored."""

    leader_epoch: int = -1
    first_offset: int = 0
    start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)


class SharedStore:
    """What all engines reach, unless it is away."""

    def __init__(self) -> None:
        self.rows: dict[Key, Row] = {}
        self.is_away = False
        self.failures = 0
        """So many of the next questions are not answered."""
        self.failed_take_overs = 0
        """So many of the next take-overs fail."""
        self.gate = asyncio.Event()
        """While it is not set, nobody is answered."""
        self.gate.set()

    async def ask(self) -> None:
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StorageError("the store did not answer")
        if self.is_away:
            raise StorageError("the store is away")

    def row(self, topic: str, partition: int = 0) -> Row:
        """The row of a log, if there is exactly one of that name."""
        (found,) = (row for (_, at), row in self.rows.items() if at == TopicPartition(topic, partition))
        return found


class SharedLog(MemoryLog):
    """A log as one broker has it open."""

    store: SharedStore
    row: Row
    _committed_end = 0
    _epoch = -1
    _companion: SharedLog | None = None

    @property
    def visible_end(self) -> int:
        return self._committed_end

    async def take_over(self, leader_epoch: int) -> None:
        await self.store.ask()
        if self.store.failed_take_overs:
            self.store.failed_take_overs -= 1
            raise StorageError("the store did not answer")
        if self.row.leader_epoch > leader_epoch:
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"led in epoch {self.row.leader_epoch}")
        self._epoch = self.row.leader_epoch = leader_epoch
        await self.load()

    async def load(self) -> None:
        """Brings the log to what is stored."""
        row = self.row
        await super().begin_at(row.first_offset)
        await super().append_as_is(memoryview(b"".join(row.batches)))
        await super().trim(row.start_offset)
        self._committed_end = self.end_offset

    def sync_after(self, companion: Log) -> None:
        assert isinstance(companion, SharedLog)
        self._companion = companion

    async def secure(self, messages: int) -> None:
        await self._commit()

    async def append_as_is(self, batches: memoryview) -> int:
        end = await super().append_as_is(batches)
        await self._commit()
        return end

    async def cut(self, end_offset: int) -> None:
        await self._check_leads()
        await super().cut(end_offset)
        self._store_all()

    async def begin_at(self, start_offset: int) -> None:
        await self._check_leads()
        await super().begin_at(start_offset)
        self._store_all()

    async def trim(self, start_offset: int) -> None:
        await self._check_leads()
        await super().trim(start_offset)
        self.row.start_offset = self.start_offset

    async def _commit(self) -> None:
        await self._check_leads()
        if self._companion is not None:
            await self._companion._commit()
        self.row.batches += (held.batch for held in self._held if held.header.base_offset >= self._committed_end)
        self._committed_end = self.end_offset

    async def _check_leads(self) -> None:
        await self.store.ask()
        if self.row.leader_epoch != self._epoch:
            await self.load()
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"led in epoch {self.row.leader_epoch}")

    def _store_all(self) -> None:
        self.row.batches = [held.batch for held in self._held]
        self.row.first_offset = self._held[0].header.base_offset if self._held else self.end_offset
        self.row.start_offset = self.start_offset
        self._committed_end = self.end_offset


class SharedEngine(MemoryEngine):
    """One broker's way to the store."""

    is_shared = True

    def __init__(self, store: SharedStore, clock: Clock | None = None) -> None:
        super().__init__(LogSettings(), Limits(), clock or ManualClock(NOW_MS))
        self.store = store

    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        await self.store.ask()
        log = await self._open(at, topic_id, config)
        beside = companion_of(at)
        if (topic_id, beside) in self.store.rows:
            log.sync_after(await self._open(beside, topic_id, companion_config(config)))
        return log

    async def delete(self, *logs: TopicPartition) -> None:
        await self.store.ask()
        for at in logs:
            self.store.rows.pop((self._logs.pop(at).topic_id, at), None)

    async def release(self, *logs: TopicPartition) -> None:
        for at in logs:
            del self._logs[at]

    async def find_strays(self) -> Sequence[StrayLog]:
        await self.store.ask()
        return [StrayLog(str(at), topic_id, at) for topic_id, at in self.store.rows if at not in self._logs]

    async def discard(self, stray: StrayLog) -> None:
        await self.store.ask()
        del self.store.rows[stray.topic_id, stray.topic_partition]

    async def _open(self, at: TopicPartition, topic_id: TopicId, config: TopicConfig) -> SharedLog:
        log = SharedLog(at, topic_id, config, self._clock, self._limits, self._settings)
        log.store = self.store
        log.row = self.store.rows.setdefault((topic_id, at), Row())
        await log.load()
        self._logs[at] = log
        return log
