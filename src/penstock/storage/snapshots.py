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

from penstock.checksum import crc32c
from penstock.storage.producers import ProducedBatch, ProducerEntry, ProducerState

_MAGIC = b"PSPR"
_FORMAT = 3
_MARKERS_UNHEEDED = 2
"""The format before has the same bytes, but its first sequence is that of the epoch, whatever markers came since."""
_PREAMBLE = struct.Struct(">4sBI")
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqiiqqB")
_BATCH = struct.Struct(">iiqq")


def snapshot_of(producers: ProducerState) -> bytes:
    """The producers as the bytes of a `.producers` file."""
    body = bytearray(_COUNT.pack(len(producers)))
    for producer_id, entry in producers.entries():
        body += entry_bytes(producer_id, entry)
    return _PREAMBLE.pack(_MAGIC, _FORMAT, crc32c(bytes(body))) + bytes(body)


def entry_bytes(producer_id: int, entry: ProducerEntry) -> bytes:
    """One producer as it is in the file."""
    packed = _PRODUCER.pack(
        producer_id,
        entry.epoch,
        entry.last_seen_ms,
        entry.first_sequence,
        entry.coordinator_epoch,
        entry.marker_offset,
        entry.open_since,
        len(entry.batches),
    )
    return b"".join((packed, *(_BATCH.pack(*batch) for batch in entry.batches)))


def read_entry(content: bytes) -> ProducerEntry:
    """One producer; ValueError if the content is not one."""
    try:
        _, entry, end = _read_entry(content, 0)
    except struct.error as error:
        raise ValueError(f"the entry of a producer ends early: {error}") from error
    if end != len(content):
        raise ValueError("the entry of a producer has more bytes than it says")
    return entry


def read_snapshot(snapshot: bytes) -> dict[int, ProducerEntry]:
    """The producers in a `.producers` file; ValueError if it is damaged."""
    if len(snapshot) < _PREAMBLE.size + _COUNT.size:
        raise ValueError("too short for a producer snapshot")
    magic, format_, crc = _PREAMBLE.unpack_from(snapshot)
    if magic != _MAGIC or format_ not in (_MARKERS_UNHEEDED, _FORMAT):
        raise ValueError("not a producer snapshot of a format known here")
    if crc32c(snapshot[_PREAMBLE.size :]) != crc:
        raise ValueError("the producer snapshot's CRC does not match")
    try:
        entries = _read_entries(snapshot, _PREAMBLE.size)
    except struct.error as error:
        raise ValueError(f"the producer snapshot ends early: {error}") from error
    if format_ == _MARKERS_UNHEEDED:
        for entry in entries.values():
            entry.heed_marker()
    return entries


def _read_entries(snapshot: bytes, position: int) -> dict[int, ProducerEntry]:
    (count,) = _COUNT.unpack_from(snapshot, position)
    position += _COUNT.size
    entries: dict[int, ProducerEntry] = {}
    for _ in range(count):
        producer_id, entry, position = _read_entry(snapshot, position)
        entries[producer_id] = entry
    return entries


def _read_entry(snapshot: bytes, position: int) -> tuple[int, ProducerEntry, int]:
    """A producer, its entry, and where the next one begins."""
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
    return producer_id, entry, position
