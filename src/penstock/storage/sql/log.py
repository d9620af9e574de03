"""A log in a table: what is written goes to the writer, what is read comes from the tail cache or the table.

Invariants:
- start_offset <= committed_end <= end_offset. What lies above `committed_end` waits in the writer, and no reader sees
  it.
- `producers`, `epochs` and `segments` are those of `end_offset`. If what waits is taken back, the end goes back at
  once, and they are all read again from the database (`state_reload`); until then the log takes nothing.
- The log takes nothing once another broker leads, until `take_over`.
- Once `failure` is set the log neither takes nor serves anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from penstock.config.topic import TopicConfig
from penstock.errors import ApiError, Code, StorageError
from penstock.ids import TopicId, TopicPartition
from penstock.logs import fields
from penstock.records.batch import BatchHeader, read_header, stamp
from penstock.records.control import Marker, read_marker
from penstock.sql.database import Connection
from penstock.sql.errors import DatabaseError
from penstock.storage.admission import Checked, Inspected, check_append, check_marker, check_retired
from penstock.storage.compaction import CompactionState
from penstock.storage.contract import NOTHING, Log, LogSegment, Piece, Slice, TimedOffset
from penstock.storage.epochs import EpochHistory, EpochStart
from penstock.storage.leader_batches import copies_of
from penstock.storage.producers import ProducerState
from penstock.storage.retention import Hold
from penstock.storage.snapshots import entry_bytes
from penstock.storage.sql import stored_state
from penstock.storage.sql.compaction_pass import CompactionPass
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.loading import KnownEnd, StoredLog, load
from penstock.storage.sql.partition_table import PartitionTable, RecordTable
from penstock.storage.sql.record_rows import check_records
from penstock.storage.sql.segments import Segments
from penstock.storage.sql.state_reload import StateReload
from penstock.storage.sql.stored_state import LogFencedError, QueueRow, check_leads, lock_row
from penstock.storage.sql.table_ranges import TableRanges
from penstock.storage.sql.table_reads import TableReads
from penstock.storage.sql.tail_cache import TailCache, WrittenBatch
from penstock.storage.sql.trimming import Trimmer
from penstock.storage.sql.truncation import Truncation
from penstock.storage.sql.writer import GroupPart, Writer, no_writes
from penstock.storage.tags import WholeLogTags

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SqlLog(Log):
    """One partition, or the companion of one."""

    def __init__(
        self, at: TopicPartition, topic_id: TopicId, config: TopicConfig, table: PartitionTable, env: SqlEnvironment
    ) -> None:
        """`load` must have returned before it is used."""
        self.topic_partition = at
        self.topic_id = topic_id
        self.config = config
        self.table = table
        self.start_offset = self.end_offset = self.committed_end = 0
        self.epochs = EpochHistory()
        self.producers = ProducerState(env.max_producers)
        self.saved_high_watermark = -1
        self.tags: WholeLogTags = WholeLogTags()
        self.segments = Segments()
        self.compaction = CompactionState()
        self.settled_compaction = CompactionState()
        """Of which the aborted transactions in memory are: what an earlier compaction has left in the table may be of
        others.
        """
        self.row = QueueRow(0, table.name, 1, 0, stored_state.NO_EPOCH, "")
        self.leader_epoch = stored_state.NO_EPOCH
        """The epoch in which this broker leads, as far as the log was told."""
        self.companion: SqlLog | None = None
        self.companion_of: SqlLog | None = None
        """The log whose companion this is."""
        self.find_companion: Callable[[], Awaitable[SqlLog | None]] | None = None
        """Opens the companion that another broker may have made."""
        self.known_end = KnownEnd()
        self.writer = Writer(str(at), env)
        self.cache = TailCache(env.cache_room)
        self.env = env
        self.reload = StateReload(self, env)
        self._taken_back: set[int] = set()
        """Producers of which batches were taken back: what follows them is not out of order, only early."""
        self.stored_producers: set[int] = set()
        self.compacting = asyncio.Lock()
        """Held while records are removed from the middle."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False
        self.table_reads = TableReads(self)
        self.ranges = TableRanges(self, env)
        self.trimmer = Trimmer(self, env)

    # Where it stands

    @property
    def size_bytes(self) -> int:
        return self.segments.size

    def described_segments(self) -> Sequence[LogSegment]:
        return [LogSegment(*each.row()) for each in self.segments]

    @property
    def secures_later(self) -> bool:
        return True

    @property
    def stores_records(self) -> bool:
        return True

    def check_records(self, header: BatchHeader, block: memoryview) -> None:
        check_records(header, block)

    @property
    def visible_end(self) -> int:
        return self.committed_end

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: then additional rows in the database are another client's."""
        return self.writer.is_idle and not self.reload.is_stale and not self.reload.is_fenced and self.failure is None

    @property
    def can_change(self) -> bool:
        """Whether this broker may change what is stored, and it makes sense to try."""
        is_sound = self.failure is None and not self.reload.is_stale and not self.reload.is_fenced
        return is_sound and not self.is_read_only and self.env.takes_writes

    def fail(self, failure: StorageError) -> StorageError:
        """Takes the log offline."""
        if self.failure is None:
            logger.critical("log is offline", extra=fields(log=str(self.topic_partition), reason=str(failure)))
            self.failure = failure
        return failure

    def check_takes(self) -> None:
        if self.companion_of is not None:
            # A half that is written alone would be stored alone.
            self.companion_of.check_takes()
        if self.failure is not None:
            raise self.failure
        if self.reload.is_fenced:
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"another broker leads {self.topic_partition}")
        if self.is_read_only or not self.env.takes_writes:
            raise no_writes(f"{self.topic_partition} cannot be written: {self.env.why_no_writes}")
        if self.reload.is_stale:
            raise ApiError(Code.NOT_ENOUGH_REPLICAS, f"{self.topic_partition} is being read again from the database")

    # Loading

    async def load(self, row: QueueRow) -> None:
        """Reads what the database has; StorageError if that fails."""
        self.row = row
        self.adopt(await self.env.change(lambda connection: load(connection, row, self.table)))

    def adopt_copy(self, loaded: StoredLog) -> None:
        """Becomes what a server has that may be a replica: the log is for reading."""
        self.is_read_only = True
        self.adopt(loaded)

    def adopt(self, loaded: StoredLog) -> None:
        """Becomes what the database has."""
        self.reloads += 1
        state, row = loaded.state, loaded.state.row
        before = self.committed_end
        if (row.next_id, row.token) != (self.row.next_id, self.row.token) or self.cache.end_offset != row.end_offset:
            self.cache.begin_at(row.end_offset)
        self.row = row
        self.start_offset, self.end_offset, self.committed_end = row.start_offset, row.end_offset, row.end_offset
        self.epochs = EpochHistory(list(state.epochs))
        self.epochs.trim(row.start_offset)
        self.segments = Segments(state.segments)
        if loaded.added is not None:
            base_offset, size, newest_ms = loaded.added
            newest_ms = self.env.clock.now_ms() if newest_ms is None else newest_ms
            self.segments.adopt(base_offset, row.end_offset, size, newest_ms)
        kept = list(state.producers.items())[-self.env.max_producers :]
        fresh = ProducerState(self.env.max_producers)
        fresh.restore(dict(kept))
        self.producers.go_back(fresh, min(before, row.end_offset))
        for entry in state.aborted:
            self.producers.aborted.add(entry)
        self.stored_producers = set(state.producers)
        self.compaction = self.settled_compaction = state.compaction
        if self.saved_high_watermark >= 0:
            self.saved_high_watermark = max(self.saved_high_watermark, row.end_offset)
        self.reload.is_stale = False
        self.table_reads.ahead.forget()
        self.known_end.learn(row.end_offset)
        self._say_lost()
        if self.on_reload is not None:
            self.on_reload()

    def _say_lost(self) -> None:
        """Says which records the database has lost, once."""
        lost_from, self.known_end.lost_from = self.known_end.lost_from, None
        if lost_from is None:
            return
        count = self.known_end.offset - lost_from
        self.env.lost_records.count += count
        logger.critical(
            "the database has lost records: a replica without them became the primary, or it was set back",
            extra=fields(
                log=str(self.topic_partition),
                first_offset=lost_from,
                last_offset=self.known_end.offset - 1,
                records=count,
                database=str(self.env.group.primary.address),
            ),
        )

    async def take_over(self, leader_epoch: int) -> None:
        if self.failure is not None:
            raise self.failure
        if self.companion is None and self.find_companion is not None:
            companion = await self.find_companion()
            if companion is not None:
                self.sync_after(companion)
        await self.reload.take_over(leader_epoch)

    async def catch_up(self) -> None:
        await self.reload.catch_up()

    async def refresh(self) -> None:
        """Takes in what others have added, if nothing of this broker is under way."""
        await self.reload.refresh()

    def taken_back(self, producers: Iterable[int], *, is_fenced: bool) -> None:
        """What waited, of these producers, is not in the log, and never was."""
        self.reload.is_stale = True
        self.end_offset = self.committed_end
        self._taken_back.update(producers)
        self.reload.is_fenced = self.reload.is_fenced or is_fenced

    def start(self, work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=f"{what} {self.topic_partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Appending

    async def prepare_write(self) -> None:
        if self.env.buffer.is_full:
            await self.writer.prepare()

    def check(
        self,
        batch: memoryview,
        *,
        guard: int | None = None,
        is_own: bool = False,
        inspected: Inspected | None = None,
    ) -> Checked:
        self.check_takes()
        now_ms = self.env.clock.now_ms()
        if (successor := self.successor) is not None:
            return check_retired(batch, self.config, self.producers, now_ms, successor)
        try:
            return check_append(batch, self.config, self.producers, now_ms, guard, is_own=is_own, inspected=inspected)
        except ApiError as error:
            if error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self._taken_back:
                producer_id = read_header(batch).producer_id
                if producer_id in self._taken_back:
                    raise ApiError(
                        Code.NOT_ENOUGH_REPLICAS, f"earlier batches of producer {producer_id} were taken back"
                    ) from error
            raise

    def check_marker(
        self, producer_id: int, producer_epoch: int, *, committed: bool, coordinator_epoch: int
    ) -> Checked:
        self.check_takes()
        marker = Marker(committed, coordinator_epoch)
        return check_marker(self.producers, producer_id, producer_epoch, marker, self.env.clock.now_ms())

    async def write(self, checked: Checked, base_offset: int, leader_epoch: int) -> None:
        assert base_offset == self.end_offset
        stamp(checked.batch, base_offset, leader_epoch)
        header = checked.header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
        self._add(checked.batch, header, checked.now_ms, checked.marker, unpacked_bytes=checked.unpacked_bytes)

    async def write_stamped(self, batch: memoryview) -> None:
        self.check_takes()
        self._add(batch, read_header(batch), self.env.clock.now_ms(), is_told=False)

    async def append_as_is(self, batches: memoryview) -> int:
        self.check_takes()
        copies = copies_of(batches, self.start_offset, self.end_offset)
        now_ms = self.env.clock.now_ms()
        for header, batch in copies:
            self._add(batch, header, now_ms, read_marker(batch, header) if header.is_control else None)
        if copies:
            self.epochs.trim(self.start_offset)
            await self.secure(0)
            self.producers.settle(self.readable_end)
        return self.end_offset

    def _add(
        self,
        batch: memoryview,
        header: BatchHeader,
        now_ms: int,
        marker: Marker | None = None,
        *,
        is_told: bool = True,
        unpacked_bytes: int = 0,
    ) -> None:
        """Adds a stamped batch to the end of the log, and to the group that waits."""
        producer_id, base_offset = header.producer_id, header.base_offset
        is_told = is_told and producer_id >= 0 and (marker is not None or not header.is_control)
        before = self.producers.entry(producer_id) if is_told else None
        written = WrittenBatch(header, bytes(batch), now_ms, None if before is None else before.copy(), is_told)
        is_second_half = self.companion is not None and self.companion.end_offset > base_offset
        group = self.writer.group(is_second_half=is_second_half)
        part = group.part_of(self)
        part.written.append(written)
        part.end_offset = self.end_offset = header.next_offset
        part.leader_epoch = max(part.leader_epoch, header.leader_epoch)
        if header.leader_epoch > self.leader_epoch:
            self.leader_epoch = header.leader_epoch
        if self.epochs.latest != header.leader_epoch and self.epochs.begin(header.leader_epoch, base_offset):
            part.epochs.append(EpochStart(header.leader_epoch, base_offset))
        self.segments.add(header, len(written.batch), now_ms, self.config)
        part.change_segments(self.segments.take_due())
        if is_told:
            self._tell_producers(part, header, marker, now_ms)
        self.writer.wrote(group, max(len(written.batch), unpacked_bytes), header.record_count)

    def _tell_producers(self, part: GroupPart, header: BatchHeader, marker: Marker | None, now_ms: int) -> None:
        producer_id, offset = header.producer_id, header.base_offset
        if marker is None:
            self.producers.remember(header, offset, now_ms)
        else:
            self.producers.remember_marker(producer_id, header.producer_epoch, marker, offset, now_ms)
            part.aborted += self.producers.aborted.behind(offset)
        entry = self.producers.entry(producer_id)
        assert entry is not None
        part.producers[producer_id] = entry_bytes(producer_id, entry)
        self._taken_back.discard(producer_id)

    def committed(self, part: GroupPart, token: str) -> None:
        """A group of the writer is in the database."""
        self.committed_end = part.end_offset
        self.known_end.learn(part.end_offset)
        self.row = self.row._replace(next_id=part.end_offset + 1, token=token)
        self.disk_is_full = False
        self.stored_producers.update(part.producers)
        for written in part.written:
            self.cache.add(written)
        self.producers.settle(self.readable_end)
        self.ranges.grew(sum(len(written.batch) for written in part.written))

    async def secure(self, messages: int) -> None:
        await self.writer.settled(self, self.end_offset)

    async def flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        await self.writer.settled(self, -1)

    def sync_after(self, companion: Log) -> None:
        assert isinstance(companion, SqlLog)
        if companion.writer is not self.writer:
            assert companion.writer.is_idle, "a companion is written with its log from the beginning"
            companion.writer = self.writer
        self.companion, companion.companion_of = companion, self
        companion.leader_epoch = max(companion.leader_epoch, self.leader_epoch)

    # Reading

    async def read(self, offset: int, max_bytes: int, end_offset: int) -> Slice:
        while True:
            if self.failure is not None:
                raise self.failure
            if not self.start_offset <= offset <= self.end_offset:
                raise ApiError(
                    Code.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is outside {self.start_offset} to {self.end_offset} of {self.topic_partition}",
                )
            end = min(end_offset, self.committed_end)
            if offset >= end:
                return NOTHING
            if offset >= self.cache.start_offset:
                return self.cache.read(offset, max_bytes, end)
            start, upper = self.start_offset, min(end, self.cache.start_offset)
            found = await self.table_reads.ahead.read(offset, max_bytes, upper)
            if self.start_offset > start:
                continue  # rows may have gone meanwhile
            if found.batches:
                return Slice(tuple(found.batches), sum(map(len, found.batches)), found.next_offset)
            if upper >= end:
                return NOTHING
            return self.cache.read(upper, max_bytes, end)

    async def pieces(self, wanted: Sequence[Piece]) -> list[bytes]:
        return await self.table_reads.pieces(wanted)

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        return await self.table_reads.find_time(timestamp_ms)

    async def find_max_timestamp(self) -> TimedOffset | None:
        return await self.table_reads.find_max_timestamp()

    # Removing records

    async def trim(self, start_offset: int) -> None:
        if start_offset > self.end_offset:
            raise ApiError(Code.OFFSET_OUT_OF_RANGE, f"offset {start_offset} is above the end {self.end_offset}")
        await self.trimmer.trim(start_offset)

    async def change(self, work: Callable[[Connection], T]) -> T:
        """Changes what is stored, as the leader."""
        try:
            return await self.env.change(work)
        except LogFencedError as error:
            self.reload.is_fenced = True
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, str(error)) from error

    async def apply_retention(self, hold: Hold | None = None) -> int:
        now_ms = self.env.clock.now_ms()
        self.producers.expire(now_ms - self.env.producer_expiry_ms)
        if not self.can_change:
            return 0
        await self._forget_producers()
        return await self.trimmer.apply_retention(now_ms, hold)

    async def _forget_producers(self) -> None:
        """Deletes what is stored of producers that are not known any more."""
        async with self.writer.alone:
            gone = self.stored_producers.difference(producer for producer, _ in self.producers.entries())
            if gone:
                await self.change(partial(self._delete_producers, gone))
                self.stored_producers -= gone

    def _delete_producers(self, producers: set[int], connection: Connection) -> None:
        check_leads(lock_row(connection, self.row), self.leader_epoch)
        stored_state.forget_producers(connection, self.row.id, producers)

    async def compact(self) -> bool:
        if "compact" not in self.config.cleanup_policy or not isinstance(self.table, RecordTable):
            return False
        if not self.can_change or self.compacting.locked():
            return False
        async with self.compacting:
            return await CompactionPass(self, self.table, self.env).run()

    async def cut(self, end_offset: int) -> None:
        if end_offset < self.end_offset:
            await Truncation(self, self.env).cut(end_offset)

    async def begin_at(self, start_offset: int) -> None:
        await Truncation(self, self.env).begin_at(start_offset)

    def ends_at(self, end_offset: int, token: str) -> None:
        """The log was cut."""
        self.row = self.row._replace(next_id=end_offset + 1, token=token)
        self.end_offset = self.committed_end = self.known_end.offset = end_offset
        self.tags.forget()
        self.table_reads.ahead.forget()
        if self.saved_high_watermark >= 0:
            self.saved_high_watermark = max(self.start_offset, min(self.saved_high_watermark, end_offset))

    async def _save_segments(self) -> None:
        """What the next one who opens the log need not find out from its records."""
        if not self.can_change or self.writer.has_waiting:
            return
        rows = self.segments.take_changed()
        if not rows:
            return

        def save(connection: Connection) -> None:
            check_leads(lock_row(connection, self.row), self.leader_epoch)
            stored_state.save(connection, self.row.id, stored_state.StateChanges(segments=rows))

        try:
            await self.env.run(save)
        except (DatabaseError, StorageError) as error:
            logger.info(
                "could not store the last segment; it will be rebuilt from the records",
                extra=fields(log=str(self.topic_partition), error=str(error)),
            )

    # Life

    def configure(self, config: TopicConfig) -> None:
        self.config = config

    async def close(self) -> None:
        """Waits for what is under way."""
        self.is_closed = True
        await self.writer.close()
        await self._save_segments()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        self.table_reads.ahead.forget()
        self.cache.begin_at(self.committed_end)
