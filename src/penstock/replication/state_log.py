"""A partition of an internal topic as the log of a state: read from its start at load, written at every change.

The log takes a part that it cannot read from another replica. If none has it, the reader learns what is lost, and reads
on behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.errors import ApiError, Code, ProtocolError
from penstock.protocol.messages.transaction_records import COMMIT, CONTROL_RECORD_KEY
from penstock.records.batch import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, batch_of, read_header
from penstock.records.records import EncodedRecords, Record, build_batch, records_block, walk
from penstock.replication.damage_repair import DamageRepair
from penstock.replication.lost_records import LostRange, lost
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.replication.waiters import another_leads
from penstock.storage.contract import DamagedRange

_READ_BYTES = 1 << 20
_COPY_S = 30.0
_COPY_AGAIN_S = 0.2
"""How long to ask other replicas for damaged records: when a cluster starts they may not be up yet, or not know yet all
that they have.
"""


class StateRecord(NamedTuple):
    """A record of the log; a value of None takes its key back."""

    key: bytes
    value: bytes | None


class GuardedTransaction(NamedTuple):
    """In whose name records are written that count only if a transaction is committed."""

    producer_id: int
    producer_epoch: int
    guard: int
    """The log's guard of the producer, taken before the coordinator said that the transaction is going on."""


class StateBatch(NamedTuple):
    """A batch of the log: records, or the end of a transaction."""

    header: BatchHeader
    records: list[StateRecord]

    @property
    def pending_for(self) -> int | None:
        """The producer whose transaction decides whether these count."""
        is_pending = self.header.is_transactional and not self.header.is_control
        return self.header.producer_id if is_pending else None

    @property
    def is_commit(self) -> bool | None:
        """Whether it commits or aborts its producer's transaction; None if it does neither."""
        if not self.header.is_control or not self.records:
            return None
        try:
            return CONTROL_RECORD_KEY.decode(self.records[0].key).type == COMMIT
        except ProtocolError:
            return None


class StateLog:
    """Reads and writes the records of one partition."""

    def __init__(self, partition: Partition, clock: Clock, repair: DamageRepair) -> None:
        self.partition = partition
        self._clock = clock
        self._repair = repair

    async def replay(self) -> AsyncIterator[StateBatch | LostRange]:
        """Every batch of the log, in order, and in its place what cannot be read; lets others run in between."""
        offset = self.partition.log.start_offset
        while offset < self.partition.high_watermark:
            try:
                data = (await self.partition.read(offset, _READ_BYTES)).read()
            except ApiError as error:
                if error.code is not Code.CORRUPT_MESSAGE:
                    raise
                damage = self.partition.log.damage_at(offset) or DamagedRange(offset, offset + 1, 0)
                copy = await self._copy_of(damage)
                if copy is None:
                    yield lost(damage, await self.partition.log.damaged_bytes(damage))
                else:
                    for batch in _batches(copy, offset):
                        yield batch
                offset = damage.resumes_at
                continue
            if not data:
                return
            for batch in _batches(data, offset):
                yield batch
                offset = batch.damage.resumes_at if isinstance(batch, LostRange) else batch.header.next_offset
            await asyncio.sleep(0)

    async def _copy_of(self, damage: DamagedRange) -> bytes | None:
        """What another replica has in the place of a damaged range; None if there is no other, or none has it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _COPY_S
        while (leadership := self.partition.leadership) is not None:
            copy = await self._repair.copy_of(self.partition, damage)
            if copy is not None or leadership.is_only_replica or loop.time() > deadline:
                return copy
            await asyncio.sleep(_COPY_AGAIN_S)
        raise another_leads()

    async def append(
        self, records: Sequence[StateRecord] | EncodedRecords, transaction: GuardedTransaction | None = None
    ) -> None:
        """Appends all records as one batch: after a crash all of them are there or none."""
        batch = self._batch(records, transaction)
        guard = None if transaction is None else transaction.guard
        appended = await self.partition.append(memoryview(batch), ALL_IN_SYNC, guard=guard, is_own=True)
        await self.partition.acknowledged(appended.last_offset, self.partition.term)

    def _batch(
        self, records: Sequence[StateRecord] | EncodedRecords, transaction: GuardedTransaction | None
    ) -> bytearray:
        now_ms = self._clock.now_ms()
        if isinstance(records, EncodedRecords):
            assert transaction is None
            return batch_of(b"".join(records.parts), records.record_count, now_ms)
        written = [Record(key, value, (), now_ms) for key, value in records]
        if transaction is None:
            return build_batch(written)
        return build_batch(
            written,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            attributes=TRANSACTIONAL_BIT,
        )


def _batches(data: bytes, from_offset: int) -> Iterator[StateBatch | LostRange]:
    """The batches of what was read, but for those that lie below an offset."""
    view, position = memoryview(data), 0
    while position + HEADER_BYTES <= len(view):
        header = read_header(view, position)
        batch = view[position : position + header.size]
        if header.last_offset >= from_offset:
            try:
                yield StateBatch(header, _records(batch, header))
            except ApiError:
                # It was written like this: its CRC is right, and its records are not.
                yield lost(DamagedRange(header.base_offset, header.next_offset, header.size), bytes(batch))
        position += header.size


def _records(batch: memoryview, header: BatchHeader) -> list[StateRecord]:
    return [
        StateRecord(bytes(record.key), None if record.value is None else bytes(record.value))
        for record in walk(records_block(batch, header), header.record_count)
        if record.key is not None
    ]
