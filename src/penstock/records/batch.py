"""The header of a record batch, read and stamped in place.

A batch is opaque bytes on the hot path: work here is per batch, never per record. The layout, with what the broker may
stamp marked `*` (the CRC does not cover those two):

    byte  0  int64   base offset *          43  int64   producer id
          8  int32   length                 51  int16   producer epoch
         12  int32   leader epoch *         53  int32   base sequence
         16  int8    magic                  57  int32   record count
         17  uint32  crc-32c from byte 21   61          records
         21  int16   attributes
         23  int32   last offset delta
         27  int64   base timestamp
         35  int64   max timestamp
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.checksum import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
OFFSET_AND_LENGTH = struct.Struct(">qi")
LENGTH_OVERHEAD = 12
"""Base offset and length are not counted in the length field."""

CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
PAIRED_BIT = 0x2000
"""Ours: the companion log has another half of this batch, at the same offsets. Clients look at the low bits only."""
ASIDE_BIT = 0x4000
"""Ours: this is the companion's half."""

MAX_SEQUENCE = 0x7FFFFFFF
NO_TIMESTAMP = -1

_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_U32 = struct.Struct(">I")
_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The fixed fields of one batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def uses_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31 - 1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def read_header(buffer: memoryview | bytes | bytearray, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has made sure that HEADER_BYTES are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_of(batch: memoryview) -> int:
    """The CRC that the batch should carry."""
    value: int = crc32c(batch[CRC_START:])
    return value


def stamp(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Writes what the leader decides into a batch, in place."""
    _STAMP_OFFSET.pack_into(batch, 0, base_offset)
    _STAMP_EPOCH.pack_into(batch, 12, leader_epoch)


def stamp_append_time(batch: memoryview, now_ms: int) -> None:
    """Turns a batch into one with LogAppendTime, in place; this one changes the CRC."""
    (attributes,) = _I16.unpack_from(batch, CRC_START)
    _I16.pack_into(batch, CRC_START, attributes | TIMESTAMP_TYPE_BIT)
    _I64.pack_into(batch, 35, now_ms)
    _U32.pack_into(batch, 17, crc_of(batch))


def stamp_producer(batch: memoryview, producer_id: int) -> None:
    """Puts another producer's name on a batch, in place; this one changes the CRC."""
    _I64.pack_into(batch, 43, producer_id)
    _U32.pack_into(batch, 17, crc_of(batch))


def new_header(
    base_offset: int,
    leader_epoch: int,
    *,
    attributes: int = 0,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> BatchHeader:
    """The header of a batch of no producer; `with_header` puts in its length and its CRC."""
    return BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=record_count,
    )


def batch_of(records: bytes, count: int, timestamp_ms: int) -> bytearray:
    """A batch around these records, uncompressed, all of one time and of no producer."""
    size = HEADER_BYTES + len(records)
    batch = bytearray(HEADER_BYTES)
    batch += records
    HEADER.pack_into(
        batch, 0, 0, size - LENGTH_OVERHEAD, -1, MAGIC, 0, 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count
    )
    _U32.pack_into(batch, 17, crc_of(memoryview(batch)))
    return batch


def with_header(header: BatchHeader, records: bytes | memoryview) -> bytearray:
    """A batch of this header around these (already compressed) records: length and CRC are made here."""
    batch = bytearray(HEADER_BYTES + len(records))
    HEADER.pack_into(batch, 0, *header)
    _U32.pack_into(batch, 8, len(batch) - LENGTH_OVERHEAD)
    batch[HEADER_BYTES:] = records
    _U32.pack_into(batch, 17, crc_of(memoryview(batch)))
    return batch
