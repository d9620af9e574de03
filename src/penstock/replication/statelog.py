"""A partition of an internal topic as the log of a state: read from its start at load, written at every change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.errors import ProtocolError
from penstock.protocol.messages.transaction_records import COMMIT, CONTROL_RECORD_KEY
from penstock.records.batch import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.records.records import Record, build_batch, records_block, walk
from penstock.replication.partition import ALL_IN_SYNC, Partition
from penstock.storage.contract import Slice

_READ_BYTES = 1 << 20


class StateRecord(NamedTuple):
    """A record of the log; a value of None takes its key back."""

    key: bytes
    value: bytes | None


class Transaction(NamedTuple):
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

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock

    async def replay(self) -> AsyncIterator[StateBatch]:
        """Every batch of the log, in order; lets others run in between."""
        offset = self.partition.log.start_offset
        while offset < self.partition.high_watermark:
            found = await self.partition.read(offset, _READ_BYTES)
            data = memoryview(b"".join(content_of(found)))
            position = 0
            while position + HEADER_BYTES <= len(data):
                header = read_header(data, position)
                batch = data[position : position + header.size]
                if header.last_offset >= offset:
                    yield StateBatch(header, _records(batch, header))
                    offset = header.next_offset
                position += header.size
            if position == 0:
                return
            await asyncio.sleep(0)

    async def append(self, records: Sequence[StateRecord], transaction: Transaction | None = None) -> None:
        """Appends all records as one batch: after a crash all of them are there or none."""
        now_ms = self._clock.now_ms()
        written = [Record(key, value, (), now_ms) for key, value in records]
        if transaction is None:
            appended = await self.partition.append(memoryview(build_batch(written)), ALL_IN_SYNC, is_own=True)
            await self.partition.acknowledged(appended.last_offset, self.partition.term)
            return
        producer_id, producer_epoch, guard = transaction
        batch = build_batch(
            written, producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL_BIT
        )
        appended = await self.partition.append(memoryview(batch), ALL_IN_SYNC, guard=guard, is_own=True)
        await self.partition.acknowledged(appended.last_offset, self.partition.term)


def content_of(found: Slice) -> list[bytes]:
    """The bytes of what was read."""
    return [
        part if isinstance(part, bytes) else os.pread(part.fileno(), part.size, part.position) for part in found.parts
    ]


def _records(batch: memoryview, header: BatchHeader) -> list[StateRecord]:
    return [
        StateRecord(bytes(record.key), None if record.value is None else bytes(record.value))
        for record in walk(records_block(batch, header), header.record_count)
        if record.key is not None
    ]
