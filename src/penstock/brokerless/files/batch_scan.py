"""Finds sound batches in the bytes of a segment. Pure.

A batch is sound if it is complete, has the offset that is expected, and its CRC is right. What is not sound at the end
of the last segment is either being written or torn; elsewhere it is damage.
"""

from __future__ import annotations

from penstock.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, crc_of, read_header

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""A header that claims more is damaged."""


def header_at(data: memoryview, position: int) -> BatchHeader | None:
    """The header at a position, if it is complete and plausible."""
    if len(data) - position < HEADER_BYTES:
        return None
    header = read_header(data, position)
    is_plausible = (
        header.magic == MAGIC
        and HEADER_BYTES - LENGTH_OVERHEAD < header.length <= MAX_BATCH_BYTES
        and header.record_count == header.last_offset_delta + 1 > 0
    )
    return header if is_plausible else None


def sound_batch_at(data: memoryview, position: int, expected_offset: int) -> BatchHeader | None:
    """The header of the batch at a position, if the batch is sound."""
    header = header_at(data, position)
    if header is None or header.base_offset != expected_offset or position + header.size > len(data):
        return None
    return header if crc_of(data[position : position + header.size]) == header.crc else None


def behind_damage(data: memoryview, position: int, expected_offset: int) -> tuple[int, int] | None:
    """The position and offset of a sound batch that follows a damaged one; None if nothing shows where it would be."""
    header = header_at(data, position)
    if header is None:
        return None
    behind = position + header.size
    following = header_at(data, behind)
    if following is None or following.base_offset <= expected_offset:
        return None
    if sound_batch_at(data, behind, following.base_offset) is None:
        return None
    return behind, following.base_offset
