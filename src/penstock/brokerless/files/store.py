"""A queue in a folder, for the processes of one machine. `docs/internals/brokerless.md` has its rules."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from sqlite3 import Connection

from penstock.brokerless.batch_admission import delay_requests
from penstock.brokerless.files.database import FolderDatabase
from penstock.brokerless.files.groups import FolderGroups
from penstock.brokerless.files.log_appender import LogAppender
from penstock.brokerless.files.log_reader import LogReader
from penstock.brokerless.files.timers import DueMessage, FolderTimers
from penstock.brokerless.files.topics import SEGMENT_BYTES, FolderTopics
from penstock.brokerless.record_codec import record_of
from penstock.brokerless.store import (
    FencedClaimError,
    Granted,
    GroupClaims,
    GroupMember,
    GroupOffsets,
    IdFence,
    ReadPage,
    SendBatch,
    Sequenced,
    StoreAwayError,
    StoreRefusedError,
)
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS, TopicEntry
from penstock.clock import Clock, SystemClock
from penstock.delay.delay_headers import DelayRequest
from penstock.ids import TopicPartition
from penstock.records.batch import MAX_SEQUENCE, stamp
from penstock.records.records import Record, build_batch
from penstock.sdk.errors import ClosedError, TopicError
from penstock.sdk.timers import TimerQuery, WaitingMessage

log = logging.getLogger(__name__)

DATABASE = "state.sqlite"
MAX_DELAYED = 1_000_000
"""How many delayed messages a folder keeps."""
DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024
_SEQUENCE_KEPT_MS = 24 * 3600 * 1000
_FIRST_LOOK_S = 0.001
_LAST_LOOK_S = 0.01
_COUNT_MS = 1_000
_PERMISSIONS = 0o755


class FileStore:
    """A `QueueStore` in a folder."""

    incarnation = ""

    def __init__(
        self,
        folder: Path,
        *,
        is_synced: bool = False,
        partitions: int = DEFAULT_PARTITIONS,
        max_delayed: int = MAX_DELAYED,
        clock: Clock | None = None,
    ) -> None:
        """Open a folder, and create it if it does not exist. With `is_synced` nothing that was acknowledged is lost
        with the power. Raises `StoreRefusedError` and `StoreAwayError`.
        """
        self._folder = folder
        self._is_synced = is_synced
        self._max_delayed = max_delayed
        self._clock = clock or SystemClock()
        self._process = os.getpid()
        try:
            folder.mkdir(_PERMISSIONS, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreRefusedError(f"could not use the folder {folder}: {error.strerror}") from None
        self._database = FolderDatabase(folder / DATABASE, is_synced=is_synced)
        self.topics = FolderTopics(self._database, partitions)
        self._groups = FolderGroups(self._database, self._clock)
        self._timers = FolderTimers(self._database)
        self._mutex = threading.Lock()
        self._appenders: dict[TopicPartition, LogAppender] = {}
        self._readers: dict[TopicPartition, LogReader] = {}
        self._changed = threading.Condition()
        """Notified when this process appends; other processes are looked after."""
        self._waiting_count: tuple[float, int] = (float("-inf"), 0)
        self._is_closed = False
        self.timers_changed = threading.Event()
        """Set when this process added a delayed message."""

    @property
    def address(self) -> str:
        return f"file://{self._folder}"

    def settings(self, topic: str) -> Mapping[str, str]:
        return self._entry(topic).settings

    # Messages

    def append(self, batch: SendBatch) -> Sequence[int | None]:
        self._check_open()
        requests = self._requests(0, batch)
        if any(request is not None for request in requests):
            return self._decide([batch], [requests], None, None)[0]
        tp = batch.topic_partition
        now_ms = self._clock.now_ms()
        appender = self.appender(tp)
        with appender.locked():
            self._complete_decided(tp, appender)
            known = appender.repeated(batch.sequence, len(batch.messages))
            if known is not None:
                return known
            first = appender.end_offset
            records = [record_of(message, now_ms) for message in batch.messages]
            appender.write(_batch_of(records, first, batch.sequence))
        self._wake()
        return range(first, first + len(records))

    def is_writable(self, topic_partition: TopicPartition) -> bool:
        return True

    def read(self, topic_partition: TopicPartition, offset: int, max_count: int) -> ReadPage:
        self._check_open()
        try:
            return self._reader(topic_partition).read(offset, max_count)
        except OSError as error:
            raise StoreAwayError(f"could not read {topic_partition}: {error.strerror}") from None

    def bounds(self, topic_partition: TopicPartition) -> tuple[int, int]:
        self._check_open()
        try:
            return self._reader(topic_partition).bounds()
        except OSError as error:
            raise StoreAwayError(f"could not read {topic_partition}: {error.strerror}") from None

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> None:
        until_ms = self._clock.monotonic_ms() + timeout_s * 1000
        look_s = _FIRST_LOOK_S
        readers = [(self._reader(tp), offset) for tp, offset in positions.items()]
        with self._changed:
            while not self._is_closed and not self._may_have(readers):
                left_s = (until_ms - self._clock.monotonic_ms()) / 1000
                if left_s <= 0:
                    return
                self._changed.wait(min(look_s, left_s) if readers else left_s)
                look_s = min(look_s * 1.5, _LAST_LOOK_S)

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        self._entry(query.topic)
        return self._timers.listed(query)

    # Groups

    def heartbeat(self, group: str, member: GroupMember, session_ms: int) -> GroupClaims:
        self._check_open()
        return self._groups.heartbeat(group, member, session_ms)

    def claim(self, group: str, member: str, wanted: Sequence[TopicPartition]) -> Mapping[TopicPartition, Granted]:
        granted = self._groups.claim(group, member, wanted)
        return {
            tp: Granted(grant.epoch, None if grant.committed is None else self._within(tp, grant.committed))
            for tp, grant in granted.items()
        }

    def release(self, group: str, member: str, epochs: Mapping[TopicPartition, int]) -> None:
        self._groups.release(group, member, epochs)

    def leave(self, group: str, member: str) -> None:
        self._groups.leave(group, member)

    def committed(self, group: str, asked: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = self._groups.committed(group, asked)
        return {tp: self._within(tp, offset) for tp, offset in found.items()}

    def commit(self, offsets: GroupOffsets) -> None:
        self._check_open()
        self._sync_before_commit(offsets)
        with self._database.writing() as db:
            self._groups.commit(db, offsets)

    def commit_initial(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        self._groups.commit_initial(group, positions)

    # Transactions

    def fence(self, transactional_id: str) -> IdFence:
        with self._database.writing() as db:
            row = db.execute(
                "insert into fences values (?, 1) on conflict do update set epoch = epoch + 1 returning epoch",
                (transactional_id,),
            ).fetchone()
        return IdFence(transactional_id, row[0])

    def commit_transaction(
        self, batches: Sequence[SendBatch], offsets: GroupOffsets | None, fence: IdFence | None
    ) -> Sequence[Sequence[int | None]]:
        self._check_open()
        requests = [self._requests(number, batch) for number, batch in enumerate(batches)]
        return self._decide(batches, requests, offsets, fence)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.timers_changed.set()
        with self._mutex:
            for appender in self._appenders.values():
                appender.close()
            for reader in self._readers.values():
                reader.close()
        self._database.close()

    # What `FolderMaintenance` does in the background.

    @property
    def database(self) -> FolderDatabase:
        return self._database

    @property
    def timers(self) -> FolderTimers:
        return self._timers

    def deliver(self, due: Sequence[DueMessage]) -> None:
        """Append messages that are due, each once even if several processes try. Raises `StoreAwayError`."""
        now_ms = self._clock.now_ms()
        tps = sorted({each.topic_partition for each in due})
        with self._locked(tps) as appenders:
            prepared: dict[TopicPartition, list[Record]] = {tp: [] for tp in tps}
            for appender in appenders.values():
                appender.mark_decided()
            with self._database.writing() as db:
                for each in due:
                    record = self._timers.take(db, each, now_ms)
                    if record is not None:
                        prepared[each.topic_partition].append(record)
                for tp, records in prepared.items():
                    if records:
                        _note_decided(db, tp, appenders[tp].end_offset, _batch_of(records, appenders[tp].end_offset))
            self._complete_all(appenders)
        self._wake()

    def complete_decided(self) -> None:
        """Complete what a process that was killed had decided. Raises `StoreAwayError`."""
        for topic, number in self._database.read("select distinct topic, partition from decided"):
            tp = TopicPartition(topic, number)
            with self._locked([tp]):
                pass

    def folder_of(self, tp: TopicPartition) -> Path:
        return self._folder / str(tp)

    def forget_sequences(self) -> None:
        """Forget the numbers of producers that are long gone."""
        with self._database.writing() as db:
            db.execute("delete from sequences where at_ms < ?", (self._clock.now_ms() - _SEQUENCE_KEPT_MS,))

    # Internals

    def _decide(
        self,
        batches: Sequence[SendBatch],
        requests: Sequence[Sequence[DelayRequest | None]],
        offsets: GroupOffsets | None,
        fence: IdFence | None,
    ) -> Sequence[Sequence[int | None]]:
        """Change the database and partitions, all or nothing: the commit of the database decides."""
        now_ms = self._clock.now_ms()
        self._check_room(requests)
        if offsets is not None:
            self._sync_before_commit(offsets)
        with self._locked({batch.topic_partition for batch in batches}) as appenders:
            results: list[Sequence[int | None]] = []
            ends = {tp: appender.end_offset for tp, appender in appenders.items()}
            for appender in appenders.values():
                appender.mark_decided()
            with self._database.writing() as db:
                if fence is not None:
                    _check_fence(db, fence)
                known = [self._repeated(db, appenders[batch.topic_partition], batch) for batch in batches]
                is_repeated = bool(batches) and all(each is not None for each in known)
                if offsets is not None and not is_repeated:
                    self._groups.commit(db, offsets)
                for batch, asked, repeated in zip(batches, requests, known, strict=True):
                    if repeated is not None:
                        results.append(repeated)
                        continue
                    tp = batch.topic_partition
                    results.append(self._prepare(db, batch, asked, ends, now_ms))
                    db.execute(
                        "insert or replace into sequences values (?, ?, ?, ?, ?, ?)",
                        (*tp, batch.sequence.producer_id, batch.sequence.first, json.dumps(results[-1]), now_ms),
                    )
            self._complete_all(appenders)
        self._wake()
        if any(request is not None for asked in requests for request in asked):
            self.timers_changed.set()
        return results

    def _prepare(
        self,
        db: Connection,
        batch: SendBatch,
        requests: Sequence[DelayRequest | None],
        ends: dict[TopicPartition, int],
        now_ms: int,
    ) -> list[int | None]:
        """Put delayed messages into the database, and the others as decided; the offset of each."""
        tp = batch.topic_partition
        found: list[int | None] = []
        records: list[Record] = []
        for message, request in zip(batch.messages, requests, strict=True):
            if request is not None:
                self._timers.apply(db, tp, message, request)
                found.append(None)
            else:
                found.append(ends[tp] + len(records))
                records.append(record_of(message, now_ms))
        if records:
            _note_decided(db, tp, ends[tp], _batch_of(records, ends[tp]))
            ends[tp] += len(records)
        return found

    def _repeated(self, db: Connection, appender: LogAppender, batch: SendBatch) -> Sequence[int | None] | None:
        in_log = appender.repeated(batch.sequence, len(batch.messages))
        if in_log is not None:
            return in_log
        row = db.execute(
            "select offsets from sequences where topic = ? and partition = ? and producer_id = ? and first = ?",
            (*batch.topic_partition, batch.sequence.producer_id, batch.sequence.first),
        ).fetchone()
        if row is None:
            return None
        found: list[int | None] = json.loads(row[0])
        return found if len(found) == len(batch.messages) else None

    @contextmanager
    def _locked(self, tps: Iterable[TopicPartition]) -> Iterator[Mapping[TopicPartition, LogAppender]]:
        """Lock several partitions, in the order of their names, so that no two processes deadlock."""
        with ExitStack() as stack:
            appenders: dict[TopicPartition, LogAppender] = {}
            for tp in sorted(tps):
                appenders[tp] = self.appender(tp)
                stack.enter_context(appenders[tp].locked())
                self._complete_decided(tp, appenders[tp])
            yield appenders

    def _complete_all(self, appenders: Mapping[TopicPartition, LogAppender]) -> None:
        """The appends are decided: what cannot be written now is written by the next process that has the lock."""
        try:
            for tp, appender in appenders.items():
                self._complete_decided(tp, appender)
        except (StoreAwayError, OSError) as error:
            log.warning("%s: decided appends wait to be written: %s", self._folder, error)

    def _complete_decided(self, tp: TopicPartition, appender: LogAppender) -> None:
        """Write what was decided for a partition and is not in its log. The partition is locked."""
        if not appender.may_have_decided:
            return
        rows = self._database.read(
            "select id, base_offset, batch from decided where topic = ? and partition = ? order by id", *tp
        )
        for _, base_offset, raw in rows:
            if base_offset < appender.end_offset:
                continue
            batch = bytearray(raw)
            stamp(memoryview(batch), appender.end_offset, 0)
            appender.write(batch)
        if rows:
            # Also what a process wrote that was killed before it could sync.
            appender.sync()
            with self._database.writing() as db:
                db.executemany("delete from decided where id = ?", [(row[0],) for row in rows])
        appender.clear_decided()

    def _requests(self, number: int, batch: SendBatch) -> list[DelayRequest | None]:
        """What each message asks for. Raises `TopicError` and `StoreRefusedError` for what the store does not take."""
        entry = self._entry(batch.topic_partition.topic)
        return delay_requests(number, batch, entry, self._clock.now_ms())

    def _check_room(self, requests: Sequence[Sequence[DelayRequest | None]]) -> None:
        added = sum(request is not None and request.cancels is None for asked in requests for request in asked)
        if not added:
            return
        now_ms = self._clock.monotonic_ms()
        counted_ms, count = self._waiting_count
        if now_ms - counted_ms > _COUNT_MS:
            counted_ms, count = now_ms, self._timers.count()
        if count + added > self._max_delayed:
            raise StoreAwayError(f"{self._folder} keeps {count} delayed messages, and takes {self._max_delayed}")
        self._waiting_count = (counted_ms, count + added)

    def _sync_before_commit(self, offsets: GroupOffsets) -> None:
        """Readers see batches before they are synced; an offset must not outlive its message."""
        if not self._is_synced:
            return
        try:
            for tp in offsets.positions:
                self._reader(self._source(tp)).sync()
        except OSError as error:
            raise StoreAwayError(f"could not sync {self._folder}: {error.strerror}") from None

    def _within(self, tp: TopicPartition, offset: int) -> int:
        """A committed offset, but not beyond the end: a power loss may have taken messages."""
        end = self.bounds(self._source(tp))[1]
        if offset > end:
            log.warning("%s: offset %d was committed, and the end is %d: messages were lost", tp, offset, end)
        return min(offset, end)

    def _source(self, tp: TopicPartition) -> TopicPartition:
        entry = self.topics.entry(tp.topic)
        return tp if entry is None or entry.view_of is None else TopicPartition(entry.view_of, tp.partition)

    def _entry(self, topic: str) -> TopicEntry:
        entry = self.topics.entry(topic)
        if entry is None:
            raise TopicError(f"topic {topic} does not exist")
        return entry

    def appender(self, tp: TopicPartition) -> LogAppender:
        """The appending side of a partition."""
        with self._mutex:
            found = self._appenders.get(tp)
            if found is None:
                segment_bytes = self._entry(tp.topic).number(SEGMENT_BYTES, DEFAULT_SEGMENT_BYTES)
                found = self._appenders[tp] = LogAppender(
                    self.folder_of(tp), segment_bytes, self._clock, is_synced=self._is_synced
                )
            return found

    def _reader(self, tp: TopicPartition) -> LogReader:
        with self._mutex:
            found = self._readers.get(tp)
            if found is None:
                self._entry(tp.topic)
                found = self._readers[tp] = LogReader(tp, self.folder_of(tp))
            return found

    def _may_have(self, readers: Sequence[tuple[LogReader, int]]) -> bool:
        try:
            return any(reader.may_have(offset) for reader, offset in readers)
        except OSError as error:
            raise StoreAwayError(f"could not read {self._folder}: {error.strerror}") from None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self.address} is closed")
        if os.getpid() != self._process:
            raise ClosedError(f"{self.address} was opened by another process: open it in each process that uses it")


def _batch_of(records: Sequence[Record], base_offset: int, sequence: Sequenced | None = None) -> bytearray:
    """A batch; one that is decided carries no sequence, because the database has it."""
    if sequence is None:
        return build_batch(records, base_offset=base_offset, leader_epoch=0)
    return build_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=sequence.producer_id,
        producer_epoch=0,
        base_sequence=sequence.first & MAX_SEQUENCE,
    )


def _note_decided(db: Connection, tp: TopicPartition, base_offset: int, batch: bytearray) -> None:
    db.execute(
        "insert into decided (topic, partition, base_offset, batch) values (?, ?, ?, ?)",
        (*tp, base_offset, bytes(batch)),
    )


def _check_fence(db: Connection, fence: IdFence) -> None:
    row = db.execute("select epoch from fences where transactional_id = ?", (fence.transactional_id,)).fetchone()
    if row is None or row[0] != fence.epoch:
        raise FencedClaimError(f"another client uses the transactional id {fence.transactional_id}; nothing was done")
