"""What a log reads from its table: on the primary, or on a replica while that is down.

A replica may be behind. A read that would get another answer there than on the primary raises ReplicaBehindError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import StorageError
from penstock.sql.database import Connection
from penstock.sql.errors import SchemaChanged
from penstock.storage.compaction import CompactionState
from penstock.storage.contract import Piece, ReplicaBehindError, TimedOffset
from penstock.storage.epochs import EpochHistory
from penstock.storage.sql import schema, stored_state
from penstock.storage.sql.partition_table import BatchTable, FoundBatches, OnSize, SegmentSpan, WantedRange
from penstock.storage.sql.read_ahead import ReadAhead

if TYPE_CHECKING:
    from penstock.storage.sql.log import SqlLog

T = TypeVar("T")


class TableReads:
    """Those of one log."""

    def __init__(self, log: SqlLog) -> None:
        self._log = log
        self.ahead = ReadAhead(log, self._read)

    def _check(self) -> None:
        if self._log.failure is not None:
            raise self._log.failure

    async def _read(self, offset: int, max_bytes: int, end_offset: int, on_size: OnSize) -> FoundBatches:
        """Whole batches from `offset` on, below `end_offset`."""
        log = self._log
        wanted = WantedRange(offset, max_bytes, end_offset, log.epochs.starts)

        def read(connection: Connection, replica_end: int | None) -> FoundBatches:
            if replica_end is not None:
                return self._read_replica(wanted, connection, replica_end)
            connection.hold_snapshot()
            return log.table.read(connection, wanted, on_size)

        return await self.query(read)

    def _read_replica(self, wanted: WantedRange, connection: Connection, replica_end: int) -> FoundBatches:
        """In a thread."""
        log = self._log
        if wanted.offset >= replica_end:
            raise self._behind(replica_end)
        settled = log.settled_compaction
        if settled != CompactionState() and stored_state.load_compaction(connection, log.row) != settled:
            raise self._behind(replica_end)
        found = log.table.read(connection, wanted._replace(end_offset=min(wanted.end_offset, replica_end)))
        if not found.batches and replica_end < wanted.end_offset:
            raise self._behind(replica_end)
        return found

    async def query(self, work: Callable[[Connection, int | None], T]) -> T:
        """Reads from the primary, or from a replica if that is down: `work` gets the end of the log there, or None for
        the primary. All rows below that end are there.
        """
        log = self._log

        def on_replica(connection: Connection) -> T:
            row = stored_state.find_row(connection, log.row.id)
            if row is None or (log.env.generation > 0 and row.leader_epoch < log.leader_epoch):
                # It has not got the take-over yet, or is a former primary, and has records that are in no log any more.
                raise self._behind(0)
            return work(connection, row.end_offset)

        try:
            return await log.env.read_anywhere(lambda connection: work(connection, None), on_replica)
        except StorageError as error:
            if isinstance(error.__cause__, SchemaChanged):
                raise log.fail(schema.altered([log.row.table], error)) from error
            raise

    def _behind(self, replica_end: int) -> ReplicaBehindError:
        return ReplicaBehindError(
            f"{self._log.topic_partition}: the primary is down,"
            f" and the replica lacks what lies at {replica_end} and behind"
        )

    async def pieces(self, wanted: Sequence[Piece]) -> list[bytes]:
        self._check()
        table = self._log.table
        assert isinstance(table, BatchTable), "only a companion is asked for bytes: it keeps batches as they were sent"

        def find(connection: Connection, replica_end: int | None) -> list[bytes]:
            if replica_end is not None and any(piece.base_offset >= replica_end for piece in wanted):
                raise self._behind(replica_end)
            return table.pieces(connection, wanted)

        return await self.query(find)

    def _spans(self) -> list[SegmentSpan]:
        """All segments that have committed records."""
        log = self._log
        return [
            SegmentSpan(each.base_offset, min(each.next_offset, log.committed_end), each.max_ms)
            for each in log.segments
            if each.next_offset > log.start_offset and each.base_offset < log.committed_end
        ]

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        self._check()
        log = self._log
        spans = [each for each in self._spans() if each.max_ms >= timestamp_ms]
        start, epochs = log.start_offset, EpochHistory(list(log.epochs.starts))

        def find(connection: Connection, replica_end: int | None) -> TimedOffset | None:
            for span in spans:
                found = log.table.find_time(connection, span, timestamp_ms, start, epochs)
                if found is not None and (replica_end is None or found.offset < replica_end):
                    return found
                if replica_end is not None and replica_end < span.next_offset:
                    raise self._behind(replica_end)
            return None

        return await self.query(find)

    async def find_max_timestamp(self) -> TimedOffset | None:
        self._check()
        log = self._log
        spans, end_offset = self._spans(), log.committed_end
        start, epochs = log.start_offset, EpochHistory(list(log.epochs.starts))

        def find(connection: Connection, replica_end: int | None) -> TimedOffset | None:
            if replica_end is not None and replica_end < end_offset:
                raise self._behind(replica_end)
            largest: TimedOffset | None = None
            # The largest first: most of the others need not be looked at then. Of equals the first one counts.
            for span in sorted(spans, key=lambda each: (-each.max_ms, each.base_offset)):
                if largest is not None and span.max_ms < largest.timestamp_ms:
                    break
                found = log.table.find_max(connection, span, start, epochs)
                if found is not None and (
                    largest is None or (-found.timestamp_ms, found.offset) < (-largest.timestamp_ms, largest.offset)
                ):
                    largest = found
            return largest

        return await self.query(find)
