"""Delayed messages in one database: storing, reading what is due, settling what was sent, and the slots.

Rules:

- Who changes rows of a shard locks the shard's row first; positions are locked before shards, both in ascending order.
- A slot is closed by raising `first_slot` while it is known to be empty, and dropped after that. Its number never
  returns.

`docs/internals/delay-bridge.md` says why.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from penstock.bridge.forwarded_message import headers_as_text, headers_from_text
from penstock.bridge.intake_message import Cancel, Entry, Waiting
from penstock.bridge.progress import RowKey
from penstock.bridge.table_plan import SlotState, TablePlan
from penstock.bridge.tables import ROW_COLUMNS, Layout, TableNames, create_rows_table, create_tables
from penstock.clock import Clock
from penstock.durations import parse_duration
from penstock.ids import TopicPartition
from penstock.recurrence import RecurrenceError, parse_recurrence
from penstock.sdk.ports import Headers
from penstock.sql.database import Connection, Database
from penstock.sql.errors import Contended, Duplicate, SchemaChanged, TooLarge

T = TypeVar("T")

_KEYS_A_STATEMENT = 500
_TRIES = 20
"""Of a transaction that others are in the way of, or whose slot is gone or not there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBatch:
    """Messages of one partition of an intake topic, from `start` to before `end`."""

    topic_partition: TopicPartition
    source: str
    """The topic's id and the partition."""
    start: int
    end: int
    entries: Sequence[tuple[int, Entry]]
    """Each with its shard in this database; offsets ascend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """A message that is due."""

    key: RowKey
    deliver_at_ms: int | None
    topic: str
    partition: int | None
    message_key: bytes | None
    value: bytes | None
    headers: Headers
    schedule: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What came of a batch."""

    inserted: int
    removed: int
    """Replaced or cancelled."""
    repeated: int
    """Messages that were stored before."""


class PositionBehind(Exception):
    """The database has not stored what comes before a batch: read again from there."""

    def __init__(self, tp: TopicPartition, offset: int) -> None:
        super().__init__(f"{tp} is stored up to offset {offset}")
        self.topic_partition = tp
        self.offset = offset


class RowTooLarge(Exception):
    """The database cannot store a message. Nothing of its batch was stored."""

    def __init__(self, tp: TopicPartition, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.topic_partition = tp
        self.offset = offset


class _SlotMissing(Exception):
    def __init__(self, shard: int, slot: int) -> None:
        super().__init__(f"shard {shard} has no slot {slot}")
        self.shard = shard
        self.slot = slot


@dataclass(slots=True)
class _Shard:
    """A locked shard."""

    number: int
    next_seq: int
    state: SlotState
    slots: Sequence[int]


class DelayDatabase:
    """The shards in one database."""

    def __init__(self, database: Database, group: str, layout: Layout, plan: TablePlan, clock: Clock) -> None:
        self.database = database
        self.layout = layout
        self.names = TableNames(group)
        self._plan = plan
        self._clock = clock
        self._quoted = database.dialect.quoted
        self._incarnations: dict[int, bytes] = {}

    @property
    def shards(self) -> range:
        return range(self.layout.tables)

    def incarnation(self, shard: int) -> bytes:
        """Of the shard's tables; known after `open`."""
        return self._incarnations[shard]

    async def open(self) -> None:
        """Make what is missing. Raises ConfigError if the tables have another layout."""
        await self._defined(partial(create_tables, names=self.names, layout=self.layout))
        await self._retried(self._create_shards)
        found = await self.database.run(
            lambda connection: connection.execute(f"SELECT shard, incarnation FROM {self._quoted(self.names.shards)}"),
            is_read_only=True,
        )
        self._incarnations = {shard: bytes.fromhex(text) for shard, text in found}

    async def store(self, batches: Sequence[PartitionBatch]) -> Stored:
        """Insert the entries that are new, and move the positions behind the batches, or nothing at all."""
        return await self._retried(partial(self._store, batches=sorted(batches, key=lambda each: each.source)))

    async def read_due(
        self, shard: int, after: tuple[int, int], now_ms: int, most_rows: int, most_bytes: int
    ) -> list[DueRow]:
        """The next rows behind `(due, seq)` that are due, in order; the first one whatever its size."""
        return await self._retried(
            lambda connection: self._read_due(connection, shard, after, now_ms, most_rows, most_bytes),
            is_read_only=True,
        )

    async def next_due_ms(self, shard: int, now_ms: int) -> int | None:
        """When the next row is due, of those in slots that are read now."""
        return await self._retried(lambda connection: self._next_due(connection, shard, now_ms), is_read_only=True)

    async def settle(self, shard: int, keys: Sequence[RowKey], *, has_schedules: bool) -> int:
        """Delete rows that were sent, and insert the next time of schedules; how many rows were still there."""
        return await self._retried(lambda connection: self._settle(connection, shard, keys, has_schedules))

    async def pending(self) -> Mapping[int, int]:
        """Rows that wait, by shard."""
        found = await self.database.run(
            lambda connection: connection.execute(f"SELECT shard, pending FROM {self._quoted(self.names.shards)}"),
            is_read_only=True,
        )
        return dict(found)

    async def tend_slots(self, shard: int) -> None:
        """Drop slots that are over and empty, and begin the next turn. For the owner of the shard."""
        slots, state = await self._retried(lambda connection: self._slots_and_state(connection, shard))
        now_ms = self._clock.now_ms()
        for slot in slots:
            if slot < state.first_slot or (
                self._plan.is_over(slot, state, now_ms)
                and await self._retried(partial(self._closed_if_empty, shard=shard, slot=slot))
            ):
                await self._defined(partial(self._drop_slot, shard=shard, slot=slot))
            else:
                # Slots are closed in their order, because `first_slot` closes all before it.
                break
        slots, state = await self._retried(lambda connection: self._slots_and_state(connection, shard))
        if self._plan.is_turn_due(slots, state, now_ms):
            await self._create_slot(shard, state.current_slot + 1)
            await self._retried(lambda connection: self._turn(connection, shard, state.current_slot, now_ms))

    # Below this line functions run in a thread, inside of a transaction.

    def _create_shards(self, connection: Connection) -> None:
        known = {row[0] for row in connection.execute(f"SELECT shard FROM {self._quoted(self.names.shards)}")}
        columns = ["shard", "incarnation", "next_seq", "first_slot", "current_slot", "turned_at", "pending"]
        new = [shard for shard in self.shards if shard not in known]
        now_ms = self._clock.now_ms()
        connection.insert(
            self.names.shards, columns, [(shard, secrets.token_hex(16), 1, 0, 0, now_ms, 0) for shard in new]
        )
        connection.insert(self.names.leases, ["shard", "owner", "epoch", "until"], [(shard, "", 0, 0) for shard in new])

    def _store(self, connection: Connection, batches: Sequence[PartitionBatch]) -> Stored:
        positions = self._quoted(self.names.positions)
        for_update = connection.dialect.for_update
        by_shard: defaultdict[int, list[Entry]] = defaultdict(list)
        came_from: dict[int, TopicPartition] = {}
        repeated = 0
        for batch in batches:
            found = connection.execute(
                f"SELECT next_offset FROM {positions} WHERE source = ?{for_update}", batch.source
            )
            if found:
                position = int(found[0][0])
            else:
                position = batch.start
                connection.insert(self.names.positions, ["source", "next_offset"], [(batch.source, position)])
            if position < batch.start:
                raise PositionBehind(batch.topic_partition, position)
            following = position
            for shard, entry in batch.entries:
                if entry.offset >= following:
                    by_shard[shard].append(entry)
                    came_from[id(entry)] = batch.topic_partition
                    following = entry.offset + 1
                else:
                    repeated += 1
            if batch.end > position:
                connection.change(f"UPDATE {positions} SET next_offset = ? WHERE source = ?", batch.end, batch.source)
        inserted = removed = 0
        for number in sorted(by_shard):
            try:
                more, fewer = self._add(connection, self._locked(connection, number), by_shard[number])
            except TooLarge as error:
                # Which one is not known: the largest cannot be smaller than the one that was refused.
                waiting = [entry for entry in by_shard[number] if isinstance(entry, Waiting)]
                largest = max(waiting, key=lambda entry: entry.size)
                raise RowTooLarge(came_from[id(largest)], largest.offset, str(error)) from None
            inserted, removed = inserted + more, removed + fewer
        return Stored(inserted, removed, repeated)

    def _add(self, connection: Connection, shard: _Shard, entries: Sequence[Entry]) -> tuple[int, int]:
        kept, gone = _folded(entries)
        removed = len([entry for entry in entries if isinstance(entry, Waiting)]) - len(kept)
        deleted = sum(self._delete_timers(connection, shard.number, slot, gone) for slot in shard.slots) if gone else 0
        now_ms = self._clock.now_ms()
        rows: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
        for seq, entry in enumerate(kept, shard.next_seq):
            due_ms = max(now_ms, entry.deliver_at_ms or 0)
            slot = self._plan.slot_of(due_ms, shard.state)
            if slot not in shard.slots:
                raise _SlotMissing(shard.number, slot)
            rows[slot].append(_row_of(entry, due_ms, seq))
        for slot, of_slot in rows.items():
            connection.insert(self.names.rows(shard.number, slot), ROW_COLUMNS, of_slot)
        self._count(connection, shard, len(kept), len(kept) - deleted)
        return len(kept), removed + deleted

    def _delete_timers(self, connection: Connection, shard: int, slot: int, keys: Sequence[bytes]) -> int:
        table = self._quoted(self.names.rows(shard, slot))
        return sum(
            connection.change(f"DELETE FROM {table} WHERE timer_key IN ({_marks(some)})", *some)
            for some in _chunks(keys)
        )

    def _read_due(
        self,
        connection: Connection,
        shard: int,
        after: tuple[int, int],
        now_ms: int,
        most_rows: int,
        most_bytes: int,
    ) -> list[DueRow]:
        found: list[tuple[RowKey, int]] = []
        for slot in self._readable(connection, shard, now_ms):
            rows = connection.execute(
                f"SELECT due, seq, size FROM {self._quoted(self.names.rows(shard, slot))}"
                " WHERE due >= ? AND due <= ? AND (due > ? OR seq > ?) ORDER BY due, seq LIMIT ?",
                after[0],
                now_ms,
                *after,
                most_rows,
            )
            found += [(RowKey(slot, due, seq), size) for due, seq, size in rows]
        found.sort(key=lambda each: (each[0].due_ms, each[0].seq))
        chosen: list[RowKey] = []
        total = 0
        for key, size in found[:most_rows]:
            total += size
            if chosen and total > most_bytes:
                break
            chosen.append(key)
        rows_by_key = {row.key: row for row in self._rows(connection, shard, chosen)}
        return [rows_by_key[key] for key in chosen if key in rows_by_key]

    def _rows(self, connection: Connection, shard: int, keys: Sequence[RowKey]) -> Iterator[DueRow]:
        columns = ", ".join(ROW_COLUMNS)
        for slot, some in _by_slot(keys):
            rows = connection.execute(
                f"SELECT {columns} FROM {self._quoted(self.names.rows(shard, slot))}"
                f" WHERE due >= ? AND due <= ? AND seq IN ({_marks(some)})",
                some[0].due_ms,
                some[-1].due_ms,
                *(key.seq for key in some),
            )
            for due, seq, deliver_at, _, topic, part, message_key, body, headers, _, schedule in rows:
                yield DueRow(
                    key=RowKey(slot, due, seq),
                    deliver_at_ms=deliver_at,
                    topic=topic,
                    partition=part,
                    message_key=message_key,
                    value=body,
                    headers=headers_from_text(headers),
                    schedule=schedule,
                )

    def _next_due(self, connection: Connection, shard: int, now_ms: int) -> int | None:
        times: list[int] = []
        for slot in self._readable(connection, shard, now_ms):
            table = self._quoted(self.names.rows(shard, slot))
            times += [row[0] for row in connection.execute(f"SELECT due FROM {table} ORDER BY due LIMIT 1")]
        return min(times, default=None)

    def _settle(self, connection: Connection, shard: int, keys: Sequence[RowKey], has_schedules: bool) -> int:
        locked = self._locked(connection, shard)
        there = [key for key in keys if key.slot in locked.slots]
        again = self._next_times(connection, shard, there) if has_schedules else {}
        for seq, (key, due_ms) in enumerate(again.items(), locked.next_seq):
            slot = self._plan.slot_of(due_ms, locked.state)
            if slot not in locked.slots:
                raise _SlotMissing(shard, slot)
            self._copy(connection, shard, key, RowKey(slot, due_ms, seq))
        deleted = 0
        for slot, some in _by_slot(there):
            deleted += connection.change(
                f"DELETE FROM {self._quoted(self.names.rows(shard, slot))}"
                f" WHERE due >= ? AND due <= ? AND seq IN ({_marks(some)})",
                some[0].due_ms,
                some[-1].due_ms,
                *(key.seq for key in some),
            )
        self._count(connection, locked, len(again), len(again) - deleted)
        return deleted

    def _next_times(self, connection: Connection, shard: int, keys: Sequence[RowKey]) -> Mapping[RowKey, int]:
        """When schedules among rows that are still there are due again."""
        now_ms = self._clock.now_ms()
        found: dict[RowKey, int] = {}
        for row in self._rows(connection, shard, keys):
            if row.schedule is None:
                continue
            try:
                recurrence = parse_recurrence(row.schedule, parse_duration)
                found[row.key] = recurrence.next_after(row.deliver_at_ms or row.key.due_ms, now_ms)
            except RecurrenceError:
                continue  # its last time has come
        return found

    def _copy(self, connection: Connection, shard: int, key: RowKey, to: RowKey) -> None:
        others = ", ".join(ROW_COLUMNS[3:])
        connection.change(
            f"INSERT INTO {self._quoted(self.names.rows(shard, to.slot))} (due, seq, deliver_at, {others})"
            f" SELECT {to.due_ms}, {to.seq}, {to.due_ms}, {others}"
            f" FROM {self._quoted(self.names.rows(shard, key.slot))} WHERE due = ? AND seq = ?",
            key.due_ms,
            key.seq,
        )

    def _locked(self, connection: Connection, number: int) -> _Shard:
        found = connection.execute(
            f"SELECT next_seq, first_slot, current_slot, turned_at FROM {self._quoted(self.names.shards)}"
            f" WHERE shard = ?{connection.dialect.for_update}",
            number,
        )
        next_seq, first, current, turned_at = found[0]
        state = SlotState(first_slot=first, current_slot=current, turned_at_ms=turned_at)
        slots = [slot for slot in self._slots(connection, number) if slot >= first]
        return _Shard(number, next_seq, state, slots)

    def _count(self, connection: Connection, shard: _Shard, numbers: int, rows: int) -> None:
        """Use up numbers of `seq`, and count rows that were added, or removed if negative."""
        connection.change(
            f"UPDATE {self._quoted(self.names.shards)} SET next_seq = ?, pending = pending + ? WHERE shard = ?",
            shard.next_seq + numbers,
            rows,
            shard.number,
        )

    def _slots(self, connection: Connection, shard: int) -> list[int]:
        found = connection.execute(
            f"SELECT slot FROM {self._quoted(self.names.slots)} WHERE shard = ? ORDER BY slot", shard
        )
        return [row[0] for row in found]

    def _readable(self, connection: Connection, shard: int, now_ms: int) -> list[int]:
        slots, state = self._slots_and_state(connection, shard)
        return [slot for slot in slots if slot >= state.first_slot and self._plan.is_readable(slot, now_ms)]

    def _slots_and_state(self, connection: Connection, shard: int) -> tuple[list[int], SlotState]:
        ((first, current, turned_at),) = connection.execute(
            f"SELECT first_slot, current_slot, turned_at FROM {self._quoted(self.names.shards)} WHERE shard = ?", shard
        )
        state = SlotState(first_slot=first, current_slot=current, turned_at_ms=turned_at)
        return self._slots(connection, shard), state

    def _closed_if_empty(self, connection: Connection, shard: int, slot: int) -> bool:
        locked = self._locked(connection, shard)
        if not self._plan.is_over(slot, locked.state, self._clock.now_ms()):
            return False
        if connection.execute(f"SELECT 1 FROM {self._quoted(self.names.rows(shard, slot))} LIMIT 1"):
            return False
        connection.change(
            f"UPDATE {self._quoted(self.names.shards)} SET first_slot = ? WHERE shard = ? AND first_slot <= ?",
            slot + 1,
            shard,
            slot,
        )
        return True

    def _drop_slot(self, connection: Connection, shard: int, slot: int) -> None:
        connection.change(f"DROP TABLE IF EXISTS {self._quoted(self.names.rows(shard, slot))}")
        connection.change(f"DELETE FROM {self._quoted(self.names.slots)} WHERE shard = ? AND slot = ?", shard, slot)

    def _turn(self, connection: Connection, shard: int, slot: int, now_ms: int) -> None:
        """Makes the next slot the current one, unless another bridge has done so already."""
        connection.change(
            f"UPDATE {self._quoted(self.names.shards)} SET current_slot = ?, turned_at = ?"
            " WHERE shard = ? AND current_slot = ?",
            slot + 1,
            now_ms,
            shard,
            slot,
        )

    # Above this line functions run in a thread.

    async def _retried(self, work: Callable[[Connection], T], *, is_read_only: bool = False) -> T:
        for _ in range(_TRIES - 1):
            try:
                return await self.database.run(work, is_read_only=is_read_only)
            except _SlotMissing as missing:
                await self._create_slot(missing.shard, missing.slot)
            except (Contended, Duplicate, SchemaChanged):
                # Another bridge was first: it has the lock, has made the row, or has dropped the slot.
                continue
        return await self.database.run(work, is_read_only=is_read_only)

    async def _create_slot(self, shard: int, slot: int) -> None:
        def create(connection: Connection) -> None:
            for statement in create_rows_table(connection.dialect, self.names.rows(shard, slot)):
                connection.change(statement)
            connection.upsert(self.names.slots, ["shard", "slot"], ["shard", "slot"], [(shard, slot)])

        await self._defined(create)

    async def _defined(self, work: Callable[[Connection], None]) -> None:
        """Make or drop tables, while others may do the same."""
        for _ in range(_TRIES - 1):
            try:
                return await self.database.run_ddl(work)
            except Contended:
                continue
        return await self.database.run_ddl(work)


def _folded(entries: Sequence[Entry]) -> tuple[list[Waiting], list[bytes]]:
    """The rows that are left of a batch in itself, and the timers whose rows of before are gone."""
    kept: dict[int, Waiting] = {}
    by_timer: dict[bytes, int] = {}
    gone: dict[bytes, None] = {}
    for number, entry in enumerate(entries):
        if entry.timer_key is not None:
            gone[entry.timer_key] = None
            kept.pop(by_timer.pop(entry.timer_key, -1), None)
        if isinstance(entry, Cancel):
            continue
        kept[number] = entry
        if entry.timer_key is not None:
            by_timer[entry.timer_key] = number
    return list(kept.values()), list(gone)


def _row_of(entry: Waiting, due_ms: int, seq: int) -> tuple[object, ...]:
    return (
        due_ms,
        seq,
        entry.deliver_at_ms,
        entry.size,
        entry.topic,
        entry.partition,
        entry.key,
        entry.value,
        headers_as_text(entry.headers),
        entry.timer_key,
        entry.schedule,
    )


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _chunks(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(values), _KEYS_A_STATEMENT):
        yield values[start : start + _KEYS_A_STATEMENT]


def _by_slot(keys: Iterable[RowKey]) -> Iterator[tuple[int, list[RowKey]]]:
    """Keys of one slot at a time, ascending, as many as fit into a statement."""
    by_slot: defaultdict[int, list[RowKey]] = defaultdict(list)
    for key in sorted(keys):
        by_slot[key.slot].append(key)
    for slot, some in by_slot.items():
        for start in range(0, len(some), _KEYS_A_STATEMENT):
            yield slot, some[start : start + _KEYS_A_STATEMENT]
