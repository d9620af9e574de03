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
_PRODUCER = struct.Struct(">qhqiB")
_BATCH = struct.Struct(">iiqq")


class ProducedBatch(NamedTuple):
    """One batch that a producer got in."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int
    """The batch's largest timestamp: where the log stamps the time of the append, that time."""


class ProducerEntry:
    """One producer as a log knows it."""

    __slots__ = ("batches", "epoch", "first_sequence", "last_seen_ms")

    def __init__(self, epoch: int, first_sequence: int) -> None:
        self.epoch = epoch
        self.first_sequence = first_sequence
        """Where the numbers seen in this epoch began; from there on they have no gap."""
        self.last_seen_ms = -1
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

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """None if the batch may be appended, its first copy if it is a repeat, ApiError if it is out of order."""
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
                return batch
        # Clients take "repeated, too late to say where it is" for success: it must be certain that all of it was taken.
        seen = (last.last_sequence - entry.first_sequence) & MAX_SEQUENCE
        behind_first = (last.last_sequence - header.base_sequence) & MAX_SEQUENCE
        behind_last = (last.last_sequence - last_sequence) & MAX_SEQUENCE
        if behind_last <= behind_first <= seen:
            raise ApiError(
                Code.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence} again, too late to say where",
            )
        raise _out_of_order(header, expected)

    def remember(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Takes an appended or replayed batch into account."""
        entry = self._entries.pop(header.producer_id, None)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = ProducerEntry(header.producer_epoch, header.base_sequence)
            if len(self._entries) >= self._max_producers:
                del self._entries[next(iter(self._entries))]
        entry.last_seen_ms = now_ms
        entry.batches.append(
            ProducedBatch(header.base_sequence, header.last_sequence, base_offset, header.max_timestamp)
        )
        self._entries[header.producer_id] = entry

    def expire(self, before_ms: int) -> None:
        """Forgets producers that have sent nothing since `before_ms`.

        The broker's clock counts: the timestamps in a producer's records say nothing about when it was here.
        """
        for producer_id in [i for i, entry in self._entries.items() if entry.last_seen_ms < before_ms]:
            del self._entries[producer_id]

    def snapshot(self) -> bytes:
        """The state as the bytes of a `.producers` file."""
        body = bytearray(_COUNT.pack(len(self._entries)))
        for producer_id, entry in self._entries.items():
            body += _PRODUCER.pack(
                producer_id, entry.epoch, entry.last_seen_ms, entry.first_sequence, len(entry.batches)
            )
            for batch in entry.batches:
                body += _BATCH.pack(*batch)
        return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)

    def restore(self, snapshot: bytes) -> None:
        """Replaces the state by that of a snapshot; ValueError if the snapshot is damaged."""
        self._entries = read_snapshot(snapshot)


def read_snapshot(snapshot: bytes) -> dict[int, ProducerEntry]:
    """The producers in a `.producers` file; ValueError if it is damaged."""
    if len(snapshot) < _PREAMBLE.size + _COUNT.size:
        raise ValueError("too short for a producer snapshot")
    magic, format_, crc = _PREAMBLE.unpack_from(snapshot)
    if magic != _MAGIC or format_ != _FORMAT:
        raise ValueError("not a producer snapshot of a format known here")
    if crc32c(snapshot[_PREAMBLE.size :]) != crc:
        raise ValueError("the producer snapshot's CRC does not match")
    try:
        return _read_entries(snapshot, _PREAMBLE.size)
    except struct.error as error:
        raise ValueError(f"the producer snapshot ends early: {error}") from error


def _read_entries(snapshot: bytes, position: int) -> dict[int, ProducerEntry]:
    (count,) = _COUNT.unpack_from(snapshot, position)
    position += _COUNT.size
    entries = {}
    for _ in range(count):
        producer_id, epoch, last_seen_ms, first_sequence, batches = _PRODUCER.unpack_from(snapshot, position)
        position += _PRODUCER.size
        entry = ProducerEntry(epoch, first_sequence)
        entry.last_seen_ms = last_seen_ms
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
