"""The memory engine: logs that live as long as the process, for tests and in-process use. Same behaviour, no disk."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from penstock.clock import Clock
from penstock.config.broker import Limits, LogSettings
from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code
from penstock.ids import TopicId, TopicPartition
from penstock.records.batch import BatchHeader, read_header, stamp
from penstock.records.control import Marker
from penstock.storage.admission import Checked, Inspected, check_append, check_marker, check_retired
from penstock.storage.compaction import CompactionState, KeyTable, Rewriting, Stretch
from penstock.storage.contract import NOTHING, Engine, Log, Piece, Slice, StrayLog, TimedOffset
from penstock.storage.epochs import EpochHistory
from penstock.storage.leader_batches import copies_of
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Aged, Hold, lost_bytes, start_by_retention, start_with_hold
from penstock.storage.snapshots import read_snapshot, snapshot_of
from penstock.storage.tags import WholeLogTags
from penstock.storage.time_lookup import first_at, max_of


class _Held(NamedTuple):
    header: BatchHeader
    batch: bytes
    appended_ms: int


def _aged(held: _Held) -> Aged:
    """A batch without a timestamp is as old as its append."""
    newest_ms = held.header.max_timestamp if held.header.max_timestamp >= 0 else held.appended_ms
    return Aged(held.header.next_offset, len(held.batch), newest_ms)


class MemoryLog(Log):
    """One partition as a list of batches."""

    def __init__(
        self,
        at: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        clock: Clock,
        limits: Limits,
        settings: LogSettings,
    ) -> None:
        self.topic_partition = at
        self.topic_id = topic_id
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        self.epochs = EpochHistory()
        self.producers = ProducerState(limits.producers_per_partition)
        self.saved_high_watermark = -1
        self.tags: WholeLogTags = WholeLogTags()
        self._clock = clock
        self._settings = settings
        self._held: list[_Held] = []
        self._size_bytes = 0
        self._compaction = CompactionState()
        self._trimmed = ProducerState(limits.producers_per_partition)
        """The producers as of the first batch held: what a cut starts from."""
        self._trimmed_end = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def visible_end(self) -> int:
        return self.end_offset

    async def prepare_write(self) -> None:
        return

    def check(
        self,
        batch: memoryview,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Checked:
        now_ms = self._clock.now_ms()
        if (successor := self.successor) is not None:
            return check_retired(batch, self.config, self.producers, now_ms, successor)
        return check_append(batch, self.config, self.producers, now_ms, guard, is_own=is_own, inspected=inspected)

    def check_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> Checked:
        marker = Marker(committed, coordinator_epoch)
        return check_marker(self.producers, producer_id, producer_epoch, marker, self._clock.now_ms())

    async def write(self, checked: Checked, base_offset: int, leader_epoch: int) -> None:
        assert base_offset == self.end_offset
        stamp(checked.batch, base_offset, leader_epoch)
        self._hold(checked.batch, checked.now_ms)
        if checked.marker is not None:
            self._remember_marker(checked, base_offset)
        elif checked.header.producer_id >= 0:
            self.producers.remember(checked.header, base_offset, checked.now_ms)

    async def write_stamped(self, batch: memoryview) -> None:
        self._hold(batch, self._clock.now_ms())

    async def secure(self, messages: int) -> None:
        return

    async def append_as_is(self, batches: memoryview) -> int:
        now_ms = self._clock.now_ms()
        for header, batch in copies_of(batches, self.start_offset, self.end_offset):
            self._hold(batch, now_ms)
            if header.producer_id >= 0:
                self.producers.replay(batch, header, now_ms)
        self.epochs.trim(self.start_offset)
        self.producers.settle(self.readable_end)
        return self.end_offset

    async def pieces(self, wanted: Sequence[Piece]) -> list[bytes]:
        found = []
        for base_offset, position, size in wanted:
            at = bisect_left(self._held, base_offset, key=lambda held: held.header.last_offset)
            found.append(self._held[at].batch[position : position + size] if at < len(self._held) else b"")
        return found

    def sync_after(self, companion: Log) -> None:
        return

    async def cut(self, end_offset: int) -> None:
        if end_offset >= self.end_offset:
            return
        kept = bisect_left(self._held, end_offset, key=lambda held: held.header.last_offset)
        end = self._held[kept - 1].header.next_offset if kept else min(end_offset, self._trimmed_end)
        if end < self.start_offset:
            await self.begin_at(min(end_offset, self.start_offset))
            return
        producers = ProducerState(self.producers.max_producers)
        producers.restore(read_snapshot(snapshot_of(self._trimmed)))
        for held in self._held[:kept]:
            if held.header.producer_id >= 0:
                producers.replay(memoryview(held.batch), held.header, held.appended_ms)
        self._end_at(kept, end)
        self.epochs.cut(end)
        self.producers.go_back(producers, end)

    async def begin_at(self, start_offset: int) -> None:
        self._trimmed = ProducerState(self.producers.max_producers)
        self.start_offset = self._trimmed_end = start_offset
        self._end_at(0, start_offset)
        self.epochs.cut(0)
        self.producers.go_back(ProducerState(self.producers.max_producers), 0)

    def _end_at(self, kept: int, end_offset: int) -> None:
        """Goes on with the first `kept` batches."""
        del self._held[kept:]
        self.tags.forget()
        self.end_offset = end_offset
        self._size_bytes = sum(len(held.batch) for held in self._held)
        self._compaction = self._compaction.cut(end_offset)
        if self.saved_high_watermark >= 0:
            self.saved_high_watermark = max(self.start_offset, min(self.saved_high_watermark, end_offset))

    def _hold(self, batch: memoryview, now_ms: int) -> None:
        """Stores a stamped batch at the end of the log."""
        held = _Held(read_header(batch), bytes(batch), now_ms)
        self._held.append(held)
        self._size_bytes += len(held.batch)
        self.epochs.begin(held.header.leader_epoch, held.header.base_offset)
        self.end_offset = held.header.next_offset

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        if not self.start_offset <= offset <= self.end_offset:
            raise ApiError(
                Code.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {self.start_offset} to {self.end_offset} of {self.topic_partition}",
            )
        parts: list[bytes] = []
        size = 0
        first = bisect_left(self._held, offset, key=lambda held: held.header.last_offset)
        for held in self._held[first:]:
            if held.header.next_offset > end_offset or (parts and size + len(held.batch) > max_bytes):
                break
            parts.append(held.batch)
            size += len(held.batch)
        return Slice(tuple(parts), size, end_offset) if parts else NOTHING

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        for held in tuple(self._held):
            if held.header.max_timestamp >= timestamp_ms:
                # In a thread: the batch is decompressed, and its records are looked at one by one.
                found = await asyncio.to_thread(
                    first_at, memoryview(held.batch), held.header, timestamp_ms, self.start_offset
                )
                if found is not None:
                    return found
        return None

    async def find_max_timestamp(self) -> TimedOffset | None:
        largest: TimedOffset | None = None
        for held in tuple(self._held):
            if largest is None or held.header.max_timestamp > largest.timestamp_ms:
                found = await asyncio.to_thread(max_of, memoryview(held.batch), held.header, self.start_offset)
                if found is not None and (largest is None or found.timestamp_ms > largest.timestamp_ms):
                    largest = found
        return largest

    async def trim(self, start_offset: int) -> None:
        if start_offset > self.end_offset:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {start_offset} is above the end {self.end_offset}")
        self.start_offset = max(self.start_offset, start_offset)
        self.epochs.trim(self.start_offset)
        self.producers.aborted.trim(self.start_offset)
        gone = 0
        while gone < len(self._held) and self._held[gone].header.next_offset <= self.start_offset:
            header, batch, appended_ms = self._held[gone]
            self._size_bytes -= len(batch)
            if header.producer_id >= 0:
                self._trimmed.replay(memoryview(batch), header, appended_ms)
            self._trimmed_end = header.next_offset
            gone += 1
        del self._held[:gone]

    async def flush(self) -> None:
        return

    def configure(self, config: TopicConfig) -> None:
        self.config = config

    async def apply_retention(self, hold: Hold | None = None) -> int:
        now_ms, old_start = self._clock.now_ms(), self.start_offset
        self.producers.expire(now_ms - self._settings.producer_expiry_ms)
        if "delete" not in self.config.cleanup_policy:
            return 0
        parts = [_aged(held) for held in self._held if held.header.next_offset <= self.settled_end]
        start = start_by_retention(parts, self._size_bytes, self.config, now_ms)
        start = start_with_hold(parts, start, self.config, now_ms, hold)
        await self.trim(max(start, old_start))
        return lost_bytes(parts, old_start, start, hold)

    async def compact(self) -> bool:
        """All but the last batch, which stands for the active segment, and below every transaction that is open."""
        now_ms = self._clock.now_ms()
        config, state = self.config, self._compaction
        if "compact" not in config.cleanup_policy:
            return False
        youngest_ms = now_ms - config.min_compaction_lag_ms
        first_unstable, settled_end = self.first_unstable_offset, self.settled_end
        closed = list(
            takewhile(
                lambda held: (
                    (not config.min_compaction_lag_ms or held.header.max_timestamp <= youngest_ms)
                    and (first_unstable is None or held.header.next_offset <= first_unstable)
                    and held.header.next_offset <= settled_end
                ),
                self._held[:-1],
            )
        )
        stretches = [Stretch(h.header.next_offset, len(h.batch), h.header.max_timestamp) for h in closed]
        if not state.is_due(stretches, config, now_ms):
            return False
        aborted = self.producers.aborted.spans(self.end_offset)
        table = KeyTable(self._settings.compaction_memory_bytes, aborted)
        table.end_offset = state.cleaned
        for held in closed:
            if held.header.next_offset > state.cleaned and not table.add(memoryview(held.batch), held.header):
                break
        drop_below = state.tombstones_end(now_ms, config.delete_retention_ms)
        rewriting = Rewriting(table, aborted, self.producers.last_offsets(), drop_below)
        kept = []
        for held in closed:
            batch = rewriting.rewrite(memoryview(held.batch), held.header)
            if batch is not None:
                kept.append(_Held(read_header(batch), bytes(batch), held.appended_ms))
        self._held[: len(closed)] = kept
        self.producers.aborted.trim(closed[-1].header.next_offset if closed else 0)
        self._size_bytes = sum(len(held.batch) for held in self._held)
        self._compaction = state.after_pass(table.end_offset, now_ms)
        return True


class MemoryEngine(Engine):
    """Logs in memory."""

    def __init__(self, settings: LogSettings, limits: Limits, clock: Clock) -> None:
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._logs: dict[TopicPartition, MemoryLog] = {}

    @property
    def logs(self) -> Mapping[TopicPartition, Log]:
        return MappingProxyType(self._logs)

    async def open(self, wanted: Mapping[TopicPartition, tuple[TopicId, TopicConfig]]) -> None:
        for at, (topic_id, config) in wanted.items():
            await self.create(at, topic_id, config)

    async def create(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, database: str = "default"
    ) -> Log:
        log = MemoryLog(at, topic_id, config, self._clock, self._limits, self._settings)
        self._logs[at] = log
        return log

    async def delete(self, *logs: TopicPartition) -> None:
        for at in logs:
            del self._logs[at]

    async def find_strays(self) -> Sequence[StrayLog]:
        return ()  # nothing outlives the process

    async def discard(self, stray: StrayLog) -> None:
        """There are none."""

    async def close(self) -> None:
        self._logs.clear()
