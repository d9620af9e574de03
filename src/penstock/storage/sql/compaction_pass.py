"""One compaction pass over a log in a table: superseded records are deleted, a few thousand rows at a time.

`storage/compaction.py` decides which records go; it is shown the rows as the batches that they form. What compaction
leaves of a log for the sake of replicas that copy it batch by batch (empty batches of producers) has no rows and is not
needed: a log of this engine has no replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.records.batch import read_header
from penstock.records.records import records_block, walk
from penstock.sql.database import Connection
from penstock.storage.compaction import CompactionState, KeyTable, Rewriting, Stretch
from penstock.storage.sql import stored_state
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.partition_table import RecordTable, WantedRange
from penstock.storage.sql.segments import Segment
from penstock.storage.sql.stored_state import check_leads, lock_row

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

_READ_BYTES = 4 << 20
_OFFSETS_A_DELETE = 1000


class CompactionPass:
    """Runs once."""

    def __init__(self, log: SqlLog, table: RecordTable, environment: SqlEnvironment) -> None:
        self._log = log
        self._table = table
        self._env = environment

    async def run(self) -> bool:
        """False if it is not worth it now."""
        log, env = self._log, self._env
        now_ms, state, config = env.clock.now_ms(), log.compaction, log.config
        closed = self._closed(now_ms)
        stretches = [Stretch(each.next_offset, each.size, each.first_ms) for each in closed]
        if not state.is_due(stretches, config, now_ms):
            return False
        end_offset = closed[-1].next_offset if closed else log.start_offset
        aborted = log.producers.aborted.spans(log.committed_end)
        table = KeyTable(env.compaction_memory_bytes, aborted)
        table.end_offset = state.cleaned
        offset = max(log.start_offset, state.cleaned)
        while offset < end_offset:
            batches, offset = await self._batches(offset, end_offset)
            if not await asyncio.to_thread(_note_keys, table, batches):
                break
            table.end_offset = offset
        drop_below = state.tombstones_end(now_ms, config.delete_retention_ms)
        rewriting = Rewriting(table, aborted, log.producers.last_offsets(), drop_below)
        for segment in closed:
            await self._rewrite(segment, rewriting)
        reached = state.after_pass(table.end_offset, now_ms)
        # Together: a reader of what was compacted away would take aborted records for committed ones.
        log.producers.aborted.trim(end_offset)
        log.settled_compaction = reached
        log.cache.forget_below(end_offset)
        await env.change(lambda connection: self._save(connection, end_offset, reached))
        log.compaction = reached
        return True

    def _closed(self, now_ms: int) -> list[Segment]:
        """All but the last segment, and below every transaction that is open."""
        log = self._log
        youngest_ms = now_ms - log.config.min_compaction_lag_ms
        first_unstable, settled_end = log.first_unstable_offset, min(log.settled_end, log.committed_end)
        return list(
            takewhile(
                lambda segment: (
                    (not log.config.min_compaction_lag_ms or segment.max_ms <= youngest_ms)
                    and (first_unstable is None or segment.next_offset <= first_unstable)
                    and segment.next_offset <= settled_end
                ),
                list(log.segments)[:-1],
            )
        )

    async def _batches(self, offset: int, end_offset: int) -> tuple[list[bytes], int]:
        """Some batches, and the offset behind them."""
        starts = self._log.epochs.starts
        found = await self._env.read(
            lambda connection: self._table.read(connection, WantedRange(offset, _READ_BYTES, end_offset, starts))
        )
        return found.batches, found.next_offset

    async def _rewrite(self, segment: Segment, rewriting: Rewriting) -> None:
        offset = max(segment.base_offset, self._log.start_offset)
        before = after = 0
        while offset < segment.next_offset:
            batches, offset = await self._batches(offset, segment.next_offset)
            gone, kept = await asyncio.to_thread(_superseded, batches, rewriting)
            before += sum(map(len, batches))
            after += kept
            for at in range(0, len(gone), _OFFSETS_A_DELETE):
                some = gone[at : at + _OFFSETS_A_DELETE]
                await self._env.change(lambda connection, some=some: self._delete(connection, some))  # type: ignore[misc]
        if after < before:
            self._log.segments.shrink(segment, segment.size * after // before)

    def _delete(self, connection: Connection, offsets: list[int]) -> None:
        check_leads(lock_row(connection, self._log.row), self._log.leader_epoch)
        self._table.delete_offsets(connection, offsets)

    def _save(self, connection: Connection, end_offset: int, reached: CompactionState) -> None:
        log = self._log
        check_leads(lock_row(connection, log.row), log.leader_epoch)
        stored_state.save_compaction(connection, log.row.id, reached)
        stored_state.forget_aborted(connection, log.row.id, end_offset)
        segments = [segment.row() for segment in log.segments if segment.next_offset <= end_offset]
        stored_state.save(connection, log.row.id, stored_state.StateChanges(segments=segments))


def _note_keys(table: KeyTable, batches: list[bytes]) -> bool:
    """In a thread; False if the table was full before it had all of them."""
    return all(table.add(memoryview(batch), read_header(batch)) for batch in batches)


def _superseded(batches: list[bytes], rewriting: Rewriting) -> tuple[list[int], int]:
    """In a thread: the offsets of records that go, and how many bytes stay."""
    gone: list[int] = []
    kept_bytes = 0
    for batch in batches:
        header = read_header(batch)
        kept = rewriting.rewrite(memoryview(batch), header)
        left = set() if kept is None else set(_offsets(kept))
        gone += (offset for offset in _offsets(memoryview(batch)) if offset not in left)
        kept_bytes += 0 if kept is None else len(kept)
    return gone, kept_bytes


def _offsets(batch: memoryview) -> Iterator[int]:
    header = read_header(batch)
    for record in walk(records_block(batch, header), header.record_count):
        yield header.base_offset + record.offset_delta
