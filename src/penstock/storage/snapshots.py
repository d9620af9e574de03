"""The bytes of a `.producers` file: every producer of a log, with what it has open, as of one offset; in bytes:

byte  0  4 bytes  "PSPR"
      4  uint8    format
      5  uint32   crc-32c of everything from byte 9 on
      9  uint32   number of producers
     13  each:    int64 producer id, int16 producer epoch, int64 when it was last seen, int32 first sequence,
                  int32 coordinator epoch, int64 offset of its last marker, int64 where its open transaction
                  begins, uint8 number of batches, then each batch: int32 first sequence, int32 last sequence,
                  int64 base offset, int64 max timestamp
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from penstock.storage.producers import ProducedBatch, ProducerEntry, ProducerState

_MAGIC = b"PSPR"
_FORMAT = 2
_PREAMBLE = struct.Struct(">4sBI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqiiqqB")
_BATCH = struct.Struct(">iiqq")


def snapshot_of(producers: ProducerState) -> bytes:
    """The producers as the bytes of a `.producers` file."""
    body = bytearray(_COUNT.pack(len(producers)))
    for producer_id, entry in producers.entries():
        body += _PRODUCER.pack(
            producer_id,
            entry.epoch,
            entry.last_seen_ms,
            entry.first_sequence,
            entry.coordinator_epoch,
            entry.marker_offset,
            entry.open_since,
            len(entry.batches),
        )
        for batch in entry.batches:
            body += _BATCH.pack(*batch)
    return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)


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
        producer_id, epoch, last_seen_ms, first, coordinator_epoch, marker_offset, open_since, batches = (
            _PRODUCER.unpack_from(snapshot, position)
        )
        position += _PRODUCER.size
        entry = ProducerEntry(epoch)
        entry.last_seen_ms = last_seen_ms
        entry.first_sequence = first
        entry.coordinator_epoch = coordinator_epoch
        entry.marker_offset = marker_offset
        entry.open_since = open_since
        for _ in range(batches):
            entry.batches.append(ProducedBatch(*_BATCH.unpack_from(snapshot, position)))
            position += _BATCH.size
        entries[producer_id] = entry
    return entries
