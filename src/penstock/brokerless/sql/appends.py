"""The transaction that appends batches to partitions, beside brokers and other clients that do the same.

Rows are made before anything is locked. Then: lock the rows of all partitions in `queue`, in the order of their table
names; check that no leader has claimed its turn; detect repeats; write everything, in one round trip where possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.brokerless.store import SendBatch, StoreRefusedError
from penstock.config.topic import TopicConfig
from penstock.delay.delay_headers import DELAY, DELIVER_AT, DelayHeaderError, DelayRules, parse_delay_headers
from penstock.ids import TopicPartition
from penstock.records.batch import HEADER_BYTES, MAX_SEQUENCE, TIMESTAMP_TYPE_BIT
from penstock.records.records import Record, build_batch
from penstock.sdk.ports import Headers, Outgoing
from penstock.sql.database import Connection
from penstock.storage.producers import ProducedBatch, ProducerEntry
from penstock.storage.snapshots import entry_bytes, read_entry
from penstock.storage.sql import inbox_table
from penstock.storage.sql.record_rows import COLUMNS, header_columns
from penstock.storage.sql.stored_state import turn_until_us

PRODUCER_EPOCH = 0
DEFER_BYTES = 16 << 10
"""What has no more goes to the database in one round trip."""
SEGMENT_BYTES = 1 << 20
"""After so many bytes a client stores a segment for all rows that have none."""
_RECORD_OVERHEAD = 64
"""About what a record has beside key, value and headers."""
_HEADER_OVERHEAD = 10
_APPEND_TIME = "LogAppendTime"

_PRODUCER_COLUMNS = ("queue_id", "producer_id", "state")
_SEGMENT_COLUMNS = ("queue_id", "base_offset", "next_offset", "bytes", "first_time", "max_time")


class QueueMissingError(Exception):
    """The partition is not in this database any more: it has moved, or its topic was deleted."""


_LONGEST_TURN_US = 1_000_000
"""A leader claimed a turn that ends later before the clock of the database was set back."""


class LeadersTurnError(Exception):
    """The leader has claimed a moment in which it alone appends."""

    def __init__(self, remaining_ms: int) -> None:
        super().__init__(f"it is the leader's turn for {remaining_ms} ms")
        self.remaining_ms = remaining_ms


@dataclass(eq=False, slots=True)
class PartitionRef:
    """A partition and its table, as this client knows them."""

    topic_partition: TopicPartition
    queue_id: int
    table: str
    database: str
    config: TopicConfig
    uncovered_bytes: int = 0
    """What this client has appended since it stored a segment last."""


@dataclass(slots=True)
class ProducerMemory:
    """What this process knows of its own producers in partitions, so that it need not ask."""

    entries: dict[tuple[int, int], ProducerEntry] = field(default_factory=dict)
    """By queue id and producer id. One is missing while the outcome of an append is not known."""
    max_entries: int = 10_000

    def forget(self, queue_id: int, producer_id: int) -> None:
        self.entries.pop((queue_id, producer_id), None)

    def keep(self, entries: Mapping[tuple[int, int], ProducerEntry]) -> None:
        for key, entry in entries.items():
            while len(self.entries) >= self.max_entries:
                self.entries.pop(next(iter(self.entries)), None)
            self.entries[key] = entry


class PreparedBatch(NamedTuple):
    """A batch as rows without ids."""

    ref: PartitionRef
    producer_id: int
    first_sequence: int
    message_count: int
    rows: list[tuple[Any, ...]]
    """All columns but the id."""
    delayed: list[Record]
    is_delayed: list[bool]
    """By message."""
    size: int
    newest_ms: int
    """The largest timestamp; -1 if there are no rows."""
    prepared_ms: int

    @property
    def last_sequence(self) -> int:
        return (self.first_sequence + self.message_count - 1) & MAX_SEQUENCE

    def offsets(self, base_offset: int) -> list[int | None]:
        """By message."""
        found: list[int | None] = []
        for is_delayed in self.is_delayed:
            found.append(None if is_delayed else base_offset)
            base_offset += not is_delayed
        return found


def prepared(ref: PartitionRef, batch: SendBatch, now_ms: int, number: int = 0) -> PreparedBatch:
    """Raises `StoreRefusedError` for a message that the topic does not take. `number` is that of the batch."""
    sequence = batch.sequence
    return _prepared(ref, batch.messages, sequence.producer_id, sequence.first, now_ms, number)


def prepared_unsequenced(ref: PartitionRef, messages: Sequence[Outgoing], now_ms: int) -> PreparedBatch:
    """Of no producer: for a transaction whose outcome its owner finds out by himself."""
    return _prepared(ref, messages, -1, 0, now_ms)


def _prepared(
    ref: PartitionRef,
    messages: Sequence[Outgoing],
    producer_id: int,
    first_sequence: int,
    now_ms: int,
    batch_number: int = 0,
) -> PreparedBatch:
    config = ref.config
    rules = DelayRules(config.delay_max_ms, config.delay_levels)
    uses_append_time = config.message_timestamp_type == _APPEND_TIME
    attributes = TIMESTAMP_TYPE_BIT if uses_append_time else 0
    producer_epoch = -1 if producer_id < 0 else PRODUCER_EPOCH
    rows: list[tuple[Any, ...]] = []
    delayed: list[Record] = []
    is_delayed: list[bool] = []
    size, newest_ms = 0, -1
    for message_number, message in enumerate(messages):
        place = batch_number, message_number
        _check(message, config, place)
        time_ms = now_ms if uses_append_time or message.timestamp_ms is None else message.timestamp_ms
        pairs = [(name.encode(), value) for name, value in message.headers]
        due_ms = _due_ms(message, pairs, now_ms, rules, place) if pairs else None
        is_delayed.append(due_ms is not None)
        if due_ms is not None:
            delayed.append(Record(message.key, message.value, _with_due(message.headers, due_ms), time_ms))
            if (needed := HEADER_BYTES + _record_bytes(delayed[-1])) > config.max_message_bytes:
                raise StoreRefusedError(
                    f"a delayed message takes {needed} bytes, and {message.topic} takes {config.max_message_bytes}"
                    " (max.message.bytes)",
                    place=place,
                )
            continue
        biz_id, tags, headers = header_columns(pairs) if pairs else (None, None, None)
        rows.append(
            (
                biz_id,
                tags,
                message.key,
                message.value,
                headers,
                time_ms,
                now_ms,
                attributes,
                producer_id,
                producer_epoch,
            )
        )
        size += message.size_bytes + len(headers or "") + _RECORD_OVERHEAD
        newest_ms = max(newest_ms, time_ms)
    return PreparedBatch(
        ref,
        producer_id,
        first_sequence & MAX_SEQUENCE,
        len(messages),
        rows,
        delayed,
        is_delayed,
        size,
        newest_ms,
        now_ms,
    )


def _check(message: Outgoing, config: TopicConfig, place: tuple[int, int]) -> None:
    if message.size_bytes > config.max_message_bytes:
        raise StoreRefusedError(
            f"a message of {message.size_bytes} bytes is larger than {message.topic} takes:"
            f" max.message.bytes is {config.max_message_bytes}",
            place=place,
        )
    if message.key is None and "compact" in config.cleanup_policy:
        raise StoreRefusedError(f"a message without a key: {message.topic} is compacted, and needs keys", place=place)


def _due_ms(
    message: Outgoing,
    pairs: Iterable[tuple[bytes, bytes | None]],
    now_ms: int,
    rules: DelayRules,
    place: tuple[int, int],
) -> int | None:
    """When a message is due that has to wait; None for one that does not."""
    try:
        request = parse_delay_headers(pairs, now_ms, rules)
    except DelayHeaderError as error:
        what = f"a message to {message.topic} asks for a delay that cannot be given: {error}"
        raise StoreRefusedError(what, place=place) from error
    return request.due_ms if request is not None and request.waits(now_ms) else None


def _with_due(headers: Headers, due_ms: int) -> Headers:
    """The delay began when the message was sent, and not when the leader takes it in."""
    delay, deliver_at = DELAY.decode(), DELIVER_AT.decode()
    return tuple((deliver_at, b"%d" % due_ms) if name == delay else (name, value) for name, value in headers)


class _Locked(NamedTuple):
    next_id: int
    now_us: int


class Appended(NamedTuple):
    """What a transaction did, once it is committed."""

    offsets: list[list[int | None]]
    """Of the messages of each batch."""
    producers: Mapping[tuple[int, int], ProducerEntry]
    """By queue id and producer id."""


def append(
    connection: Connection,
    batches: Sequence[PreparedBatch],
    memory: ProducerMemory | None = None,
    *,
    heeds_turn: bool = True,
    locks_by_update: bool = False,
) -> Appended:
    """Append all batches, without queries for producers that are in `memory`. `heeds_turn`: not while it is the turn of
    the leader; a transaction that has done other work cannot wait for that.

    Raises `QueueMissingError` and `LeadersTurnError`; nothing was done then.
    """
    refs = sorted({batch.ref.table: batch.ref for batch in batches}.values(), key=lambda ref: ref.table)
    if locks_by_update:
        for ref in refs:
            connection.change("UPDATE queue SET next_id = next_id WHERE table_name = ?", ref.table)
    writing = _Writing(connection, _lock(connection, refs, heeds_turn=heeds_turn))
    offsets = [writing.add(batch, memory) for batch in batches]
    writing.write()
    return Appended(offsets, writing.producers)


def _lock(connection: Connection, refs: Iterable[PartitionRef], *, heeds_turn: bool) -> Mapping[str, _Locked]:
    """The rows of partitions, locked in an order that is the same everywhere, so that no two transactions deadlock."""
    dialect = connection.dialect
    locked: dict[str, _Locked] = {}
    for ref in refs:
        found = connection.execute(
            f"SELECT next_id, token, {dialect.now_us} FROM queue WHERE table_name = ? AND id = ?{dialect.for_update}",
            ref.table,
            ref.queue_id,
        )
        if not found:
            raise QueueMissingError(str(ref.topic_partition))
        next_id, token, now_us = found[0]
        remaining_us = turn_until_us(token) - now_us
        if 0 < remaining_us <= _LONGEST_TURN_US and heeds_turn:
            raise LeadersTurnError(remaining_us // 1000 + 1)
        locked[ref.table] = _Locked(next_id, now_us)
    return locked


class _Writing:
    """What one transaction writes. Everything is read first, so that the rest can be sent together."""

    def __init__(self, connection: Connection, locked: Mapping[str, _Locked]) -> None:
        self._connection = connection
        self._next_ids = {table: row.next_id for table, row in locked.items()}
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self.producers: dict[tuple[int, int], ProducerEntry] = {}
        self._changed: set[tuple[int, int]] = set()
        self._segments: list[tuple[int, ...]] = []
        self._inbox: list[tuple[int, int, int, bytes]] = []
        self._inbox_numbers: dict[int, int] = {}
        self._size = 0

    def add(self, batch: PreparedBatch, memory: ProducerMemory | None) -> list[int | None]:
        ref = batch.ref
        entry = self._entry(batch, memory)
        key = ref.queue_id, batch.producer_id
        repeat = None if entry is None else _repeat(entry, batch)
        if entry is not None and repeat is not None:
            self.producers[key] = entry
            return batch.offsets(repeat.base_offset)
        next_id = self._next_ids[ref.table]
        self._rows.setdefault(ref.table, []).extend(
            (next_id + number, *values) for number, values in enumerate(batch.rows)
        )
        self._next_ids[ref.table] = next_id + len(batch.rows)
        if batch.delayed:
            self._put_aside(batch)
        if batch.producer_id >= 0:
            known = ProducerEntry(PRODUCER_EPOCH) if entry is None else entry.copy()
            _note(known, batch, next_id - 1)
            self.producers[key] = known
            self._changed.add(key)
        self._size += batch.size
        ref.uncovered_bytes += batch.size
        if ref.uncovered_bytes >= SEGMENT_BYTES:
            self._cover(batch, next_id - 1)
        return batch.offsets(next_id - 1)

    def write(self) -> None:
        connection = self._connection
        if not self._rows and not self._inbox:
            return
        if self._size <= DEFER_BYTES:
            connection.defer()
        for table, rows in self._rows.items():
            if rows:
                connection.change("UPDATE queue SET next_id = ? WHERE table_name = ?", self._next_ids[table], table)
                connection.insert(table, COLUMNS, rows)
        for each in self._inbox:
            inbox_table.put(connection, *each)
        states = [
            (queue_id, producer, entry_bytes(producer, self.producers[queue_id, producer]))
            for queue_id, producer in sorted(self._changed)
        ]
        connection.upsert("queue_producer", _PRODUCER_COLUMNS[:2], _PRODUCER_COLUMNS, states)
        connection.upsert("queue_segment", _SEGMENT_COLUMNS[:2], _SEGMENT_COLUMNS, self._segments)

    def _entry(self, batch: PreparedBatch, memory: ProducerMemory | None) -> ProducerEntry | None:
        """What the log knows of a producer; no query for a producer that this process has just created."""
        if batch.producer_id < 0:
            return None
        key = batch.ref.queue_id, batch.producer_id
        if memory is not None:
            known = self.producers.get(key) or memory.entries.get(key)
            if known is not None:
                return known
        states = self._connection.execute(
            "SELECT state FROM queue_producer WHERE queue_id = ? AND producer_id = ?",
            batch.ref.queue_id,
            batch.producer_id,
        )
        return read_entry(bytes(states[0][0])) if states else None

    def _put_aside(self, batch: PreparedBatch) -> None:
        queue_id = batch.ref.queue_id
        number = self._inbox_numbers.get(queue_id)
        if number is None:
            number = inbox_table.next_number(self._connection, queue_id)
        for records in _split(batch.delayed, batch.ref.config.max_message_bytes):
            encoded = bytes(build_batch(records))
            self._inbox.append((queue_id, number, len(records), encoded))
            self._size += len(encoded)
            number += len(records)
        self._inbox_numbers[queue_id] = number

    def _cover(self, batch: PreparedBatch, base_offset: int) -> None:
        """A segment for all rows that have none: a broker would have to add them up whenever it looks."""
        ref = batch.ref
        ref.uncovered_bytes = 0
        ((covered, start_offset),) = self._connection.execute(
            "SELECT (SELECT MAX(next_offset) FROM queue_segment WHERE queue_id = ?), start_offset"
            " FROM queue WHERE table_name = ?",
            ref.queue_id,
            ref.table,
        )
        first = max(covered or 0, start_offset)
        if first > base_offset:
            return
        ((size, oldest, newest),) = self._connection.execute(
            "SELECT COALESCE(SUM(COALESCE(LENGTH(body), 0) + COALESCE(LENGTH(msg_key), 0)), 0),"
            " MIN(COALESCE(send_time, receive_time)), MAX(COALESCE(send_time, receive_time))"
            f" FROM {self._connection.dialect.quoted(ref.table)} WHERE id > ?",
            first,
        )
        end = self._next_ids[ref.table] - 1
        times = [time for time in (oldest, newest, batch.newest_ms) if time is not None]
        self._segments.append((ref.queue_id, first, end, int(size) + batch.size, min(times), max(times)))


def _split(records: Sequence[Record], max_bytes: int) -> Iterable[Sequence[Record]]:
    """Batches that the topic takes: the leader appends them as a producer's."""
    some: list[Record] = []
    size = HEADER_BYTES
    for record in records:
        more = _record_bytes(record)
        if some and size + more > max_bytes:
            yield some
            some, size = [], HEADER_BYTES
        some.append(record)
        size += more
    yield some


def _record_bytes(record: Record) -> int:
    """At most."""
    headers = sum(len(name.encode()) + len(value or b"") + _HEADER_OVERHEAD for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + _RECORD_OVERHEAD


def _repeat(entry: ProducerEntry, batch: PreparedBatch) -> ProducedBatch | None:
    for known in entry.batches:
        if (known.first_sequence, known.last_sequence) == (batch.first_sequence, batch.last_sequence):
            return known
    return None


def _note(entry: ProducerEntry, batch: PreparedBatch, base_offset: int) -> None:
    last = entry.batches[-1] if entry.batches else None
    if last is None or (last.last_sequence + 1) & MAX_SEQUENCE != batch.first_sequence:
        # From here on there is no gap.
        entry.first_sequence = batch.first_sequence
    entry.batches.append(ProducedBatch(batch.first_sequence, batch.last_sequence, base_offset, batch.newest_ms))
    entry.last_seen_ms = max(entry.last_seen_ms, batch.prepared_ms)
