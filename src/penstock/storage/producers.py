"""What a log remembers of each idempotent producer: its epoch and its last five batches.

A producer numbers the records it sends to a partition. The next batch must start one above the last; one that was seen
before is a repeat and is answered with the offset it got the first time. Five batches are kept because clients have up
to five in flight. State is changed by `remember` alone, at append and at replay alike.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import ApiError, Code
from penstock.records.batch import MAX_SEQUENCE, BatchHeader

BATCHES_KEPT = 5

_MAGIC = b"PSPR"
_FORMAT = 1
_PREAMBLE = struct.Struct(">4sBI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiq")


class ProducedBatch(NamedTuple):
    """One batch that a producer got in."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerEntry:
    """One producer as a log knows it."""

    __slots__ = ("batches", "epoch", "last_timestamp_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_timestamp_ms = -1
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)


class ProducerState:
    """All producers of one log, least recently seen first."""

    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    def check(self, header: BatchHeader) -> int | None:
        """None if the batch may be appended, its first base offset if it is a repeat, ApiError if it is out of order."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            # Nothing is known: a new producer, or one whose records have all expired. Any sequence may begin.
            return None
        if header.producer_epoch != entry.epoch:
            if header.producer_epoch < entry.epoch:
                raise ApiError(
                    Code.INVALID_PRODUCER_EPOCH,
                    f"producer {header.producer_id} sent epoch {header.producer_epoch}, the log has seen {entry.epoch}",
                )
            if header.base_sequence != 0:
                raise _out_of_order(header, 0)
            return None
        if not entry.batches:
            return None
        last = entry.batches[-1]
        expected = (last.last_sequence + 1) & MAX_SEQUENCE
        if header.base_sequence == expected:
            return None
        last_sequence = header.last_sequence
        for batch in entry.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return batch.base_offset
        behind = (last.last_sequence - last_sequence) & MAX_SEQUENCE
        if 0 <= behind < MAX_SEQUENCE >> 1 and header.base_sequence <= last_sequence:
            raise ApiError(
                Code.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} again, too late to say where it is",
            )
        raise _out_of_order(header, expected)

    def remember(self, header: BatchHeader, base_offset: int) -> None:
        """Takes an appended or replayed batch into account."""
        entry = self._entries.pop(header.producer_id, None)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = ProducerEntry(header.producer_epoch)
            if len(self._entries) >= self._max_producers:
                del self._entries[next(iter(self._entries))]
        entry.last_timestamp_ms = header.max_timestamp
        entry.batches.append(ProducedBatch(header.base_sequence, header.last_sequence, base_offset))
        self._entries[header.producer_id] = entry

    def expire(self, before_ms: int) -> None:
        """Forgets producers that have sent nothing since `before_ms`."""
        for producer_id in [i for i, entry in self._entries.items() if entry.last_timestamp_ms < before_ms]:
            del self._entries[producer_id]

    def clear(self) -> None:
        self._entries.clear()

    def snapshot(self) -> bytes:
        """The state as the bytes of a `.producers` file."""
        body = bytearray(_COUNT.pack(len(self._entries)))
        for producer_id, entry in self._entries.items():
            body += _PRODUCER.pack(producer_id, entry.epoch, entry.last_timestamp_ms, len(entry.batches))
            for batch in entry.batches:
                body += _BATCH.pack(*batch)
        return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)

    def restore(self, snapshot: bytes) -> None:
        """Replaces the state by that of a snapshot; ValueError if the snapshot is damaged."""
        entries = read_snapshot(snapshot)
        self._entries = entries


def read_snapshot(snapshot: bytes) -> dict[int, ProducerEntry]:
    """The producers in a `.producers` file; ValueError if it is damaged."""
    if len(snapshot) < _PREAMBLE.size + _COUNT.size:
        raise ValueError("too short for a producer snapshot")
    magic, format_, crc = _PREAMBLE.unpack_from(snapshot)
    if magic != _MAGIC or format_ != _FORMAT:
        raise ValueError("not a producer snapshot of a format known here")
    if crc32c(snapshot[_PREAMBLE.size :]) != crc:
        raise ValueError("the producer snapshot's CRC does not match")
    (count,) = _COUNT.unpack_from(snapshot, _PREAMBLE.size)
    position = _PREAMBLE.size + _COUNT.size
    entries = {}
    for _ in range(count):
        producer_id, epoch, last_timestamp_ms, batches = _PRODUCER.unpack_from(snapshot, position)
        position += _PRODUCER.size
        entry = ProducerEntry(epoch)
        entry.last_timestamp_ms = last_timestamp_ms
        for _ in range(batches):
            entry.batches.append(ProducedBatch(*_BATCH.unpack_from(snapshot, position)))
            position += _BATCH.size
        entries[producer_id] = entry
    return entries


def _out_of_order(header: BatchHeader, expected: int) -> ApiError:
    return ApiError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} comes next",
    )
