"""Writes the outcome of an event: its records are appended to the log, then applied, then the replies are sent.

Also counts, for /metrics, what has happened in the groups of this broker since its start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.errors import ApiError, Code, StorageError
from penstock.groups.changes import Changes
from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.commits import Commit
from penstock.groups.consumer.records import TargetEpochRecord
from penstock.groups.events import Joined, Outcome, Synced
from penstock.groups.offsets import OffsetRecord
from penstock.groups.records import encode, encode_commit
from penstock.groups.shard import Record, Shard
from penstock.logs import fields
from penstock.records.records import EncodedRecords
from penstock.replication.shards import LoadedShard
from penstock.replication.state_log import GuardedTransaction, StateRecord

logger = logging.getLogger(__name__)

_BATCH_BYTES = 1 << 20
"""Records of one event that are appended together; more of them (a group with very many offsets) go in parts."""
_TOO_LARGE = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
_OVER = (Code.INVALID_TXN_STATE, Code.INVALID_PRODUCER_EPOCH)
"""The transaction of the commit has ended, or its producer has a successor."""


@dataclass(slots=True)
class GroupCounts:
    rebalances: int = 0
    """Plans that were written."""
    expired: int = 0
    """Members that were not heard from in time."""
    fenced: int = 0
    """Members that were put out by a reset."""
    commits: int = 0
    """Offsets that were written."""


class OutcomeWriter:
    """Appends the records of outcomes, applies them and sends the replies."""

    def __init__(self, now_ms: Callable[[], int], changes: Changes | None = None) -> None:
        """The writer reports to `changes` what it has applied, and groups whose records could not be written."""
        self.counts = GroupCounts()
        self._now_ms = now_ms
        self._changes = changes

    async def write(
        self, loaded: LoadedShard[Shard], outcome: Outcome, transaction: GuardedTransaction | None = None
    ) -> None:
        """The caller has the turn. Raises ApiError if it could not be written, and answers waiting clients."""
        pending_for = None if transaction is None else transaction.producer_id
        self.counts.expired += outcome.expired
        try:
            for part, encoded in _parts(outcome.records, is_whole=outcome.is_whole):
                await loaded.log.append(encoded, transaction)
                now_ms = self._now_ms()
                for record in part:
                    self._count(loaded.state, record)
                    loaded.state.apply(record, now_ms, pending_for)
                    if self._changes is not None:
                        self._mark(self._changes, record, is_pending=pending_for is not None)
        except (ApiError, StorageError) as error:
            code = _code_of(error)
            if code not in _OVER:
                logger.error("group change not written", extra=fields(error=str(error)))
            answer([(token, type(reply)(code=code)) for token, reply in outcome.replies])
            answer(loaded.state.not_written(outcome.records, self._now_ms()).replies)
            self._mark_groups(outcome.records)
            raise ApiError(code, str(error)) from error
        self.counts.fenced += outcome.fenced
        answer(outcome.replies)

    def _mark(self, changes: Changes, record: Record, *, is_pending: bool) -> None:
        if isinstance(record, Commit):
            changes.mark_commit(record.shape)
        elif not isinstance(record, OffsetRecord):
            changes.mark_groups([record.group_id])
        elif not is_pending:
            changes.mark_offset(record.group_id, record.at)

    def _mark_groups(self, records: Iterable[Record]) -> None:
        if self._changes is not None:
            self._changes.mark_groups(record.group_id for record in records)

    def _count(self, shard: Shard, record: Record) -> None:
        """A record is in the log, and about to be taken in."""
        if isinstance(record, OffsetRecord):
            self.counts.commits += record.committed is not None
        elif isinstance(record, Commit):
            self.counts.commits += len(record)
        elif isinstance(record, GenerationRecord) and record.members:
            group = shard.groups.get(record.group_id)
            self.counts.rebalances += isinstance(group, ClassicGroup) and group.state is GroupState.COMPLETING
        elif isinstance(record, TargetEpochRecord):
            self.counts.rebalances += record.epoch is not None


def answer(replies: Iterable[tuple[object, Joined | Synced]]) -> None:
    for token, reply in replies:
        assert isinstance(token, asyncio.Future)
        if not token.done():
            token.set_result(reply)


def _code_of(error: ApiError | StorageError) -> Code:
    """The error for clients whose change could not be written."""
    if isinstance(error, ApiError) and error.code in _OVER:
        return error.code
    is_too_large = isinstance(error, ApiError) and error.code in _TOO_LARGE
    return Code.UNKNOWN_SERVER_ERROR if is_too_large else Code.COORDINATOR_NOT_AVAILABLE


def _parts(
    records: list[Record], *, is_whole: bool
) -> Iterator[tuple[list[Record], list[StateRecord] | EncodedRecords]]:
    """The records as they are and as they are written, so many at once as go into a batch; all if they belong so."""
    part: list[Record] = []
    encoded: list[StateRecord] = []
    size = 0
    for record in records:
        if isinstance(record, Commit):
            assert len(records) == 1
            yield records, encode_commit(record)
            return
        written = encode(record)
        key, value = written
        written_bytes = len(key) + (0 if value is None else len(value))
        if part and size + written_bytes > _BATCH_BYTES and not is_whole:
            yield part, encoded
            part, encoded, size = [], [], 0
        part.append(record)
        encoded.append(written)
        size += written_bytes
    if part:
        yield part, encoded
