"""The end of a log goes back, or the log begins anew.

The log of a partition in shared storage is never cut: what is committed stays. A companion is cut where it has a half
without its other one. So what was sent together, and what was known of producers before, is known only as far back as
the tail cache reaches; a cut that needs more is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.sql.database import Connection
from penstock.storage.producers import ProducerEntry, ProducerState
from penstock.storage.snapshots import entry_bytes
from penstock.storage.sql import stored_state
from penstock.storage.sql.environment import SqlEnvironment
from penstock.storage.sql.segments import Segments
from penstock.storage.sql.stored_state import StateChanges, lock_row
from penstock.storage.sql.tail_cache import WrittenBatch
from penstock.storage.sql.writer import new_token

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog


class Truncation:
    """Of one log, once."""

    def __init__(self, log: SqlLog, environment: SqlEnvironment) -> None:
        self._log = log
        self._env = environment
        self._token = new_token()

    async def cut(self, end_offset: int) -> None:
        log = self._log
        async with log.compacting, log.trimmer.moving, log.writer.alone:
            await log.writer.drained()
            log.check_takes()
            if end_offset >= log.end_offset:
                return
            end = await self._end_below(end_offset)
            if end < log.start_offset:
                await self._begin_at(min(end_offset, log.start_offset))
            else:
                await self._cut(end)

    async def begin_at(self, start_offset: int) -> None:
        log = self._log
        async with log.compacting, log.trimmer.moving, log.writer.alone:
            await log.writer.drained()
            log.check_takes()
            await self._begin_at(start_offset)

    async def _end_below(self, end_offset: int) -> int:
        """Where the last batch ends that lies below an offset."""
        log = self._log
        if end_offset < log.start_offset:
            return end_offset
        if log.cache.start_offset <= max(end_offset, log.start_offset):
            return log.cache.end_below(end_offset)
        found = await self._env.read(lambda connection: log.table.end_below(connection, end_offset))
        end = log.start_offset if found is None else max(found, log.start_offset)
        for producer, entry in log.producers.entries():
            if max([entry.marker_offset, *(batch.base_offset for batch in entry.batches)]) >= end:
                raise StorageError(
                    f"{log.topic_partition} cannot be cut at {end}: what producer {producer} had sent by then is known"
                    f" from {log.cache.start_offset} on"
                )
        return end

    async def _cut(self, end_offset: int) -> None:
        log, queue_id = self._log, self._log.row.id
        cut = log.cache.held_from(end_offset)
        entries, changed = _producers_before(cut)
        segments = log.segments.copy()
        segments.cut(end_offset, sum(len(written.batch) for written in cut))
        compaction = log.compaction.cut(end_offset)

        def move(connection: Connection) -> dict[int, ProducerEntry]:
            self._move_end(connection, end_offset)
            log.table.delete_from(connection, end_offset)
            stored_state.cut(connection, queue_id, end_offset)
            stored_state.forget_producers(connection, queue_id, changed)
            kept = [(each, entry_bytes(each, entries[each])) for each in changed if each in entries]
            rows = [segment.row() for segment in segments]
            stored_state.save(connection, queue_id, StateChanges(segments=rows[-1:], producers=kept))
            stored_state.save_compaction(connection, queue_id, compaction)
            return stored_state.load_producers(connection, log.row)

        stored = await log.change(move)
        earlier = ProducerState(self._env.max_producers)
        earlier.restore(dict(list(stored.items())[-self._env.max_producers :]))
        log.ends_at(end_offset, self._token)
        log.cache.cut(end_offset)
        log.epochs.cut(end_offset)
        log.producers.go_back(earlier, end_offset)
        log.segments, log.compaction = segments, compaction
        log.stored_producers = set(stored)

    async def _begin_at(self, start_offset: int) -> None:
        log = self._log

        def move(connection: Connection) -> None:
            self._move_end(connection, start_offset)
            connection.change("UPDATE queue SET start_offset = ? WHERE table_name = ?", start_offset, log.row.table)
            log.table.delete_from(connection, 0)
            stored_state.forget_details(connection, log.row.id)

        await log.change(move)
        log.start_offset = start_offset
        log.ends_at(start_offset, self._token)
        log.cache.begin_at(start_offset)
        log.epochs.cut(0)
        log.producers.go_back(ProducerState(self._env.max_producers), 0)
        log.segments, log.compaction = Segments(), log.compaction.cut(start_offset)
        log.stored_producers = set()

    def _move_end(self, connection: Connection, end_offset: int) -> None:
        """In a thread. An attempt before this one may have succeeded without an answer: then the end is there."""
        log = self._log
        if lock_row(connection, log.row).token != self._token:
            stored_state.move_end(
                connection,
                log.row,
                next_id=end_offset + 1,
                expected_id=log.committed_end + 1,
                leader_epoch=log.leader_epoch,
                token=self._token,
            )


def _producers_before(cut: Sequence[WrittenBatch]) -> tuple[dict[int, ProducerEntry], set[int]]:
    """What was known of the producers before these batches, and of which of them it was something else."""
    entries: dict[int, ProducerEntry] = {}
    changed: set[int] = set()
    for written in reversed(cut):
        if written.is_told:
            producer_id = written.header.producer_id
            changed.add(producer_id)
            entries.pop(producer_id, None)
            if written.producer_before is not None:
                entries[producer_id] = written.producer_before
    return entries, changed
