"""Looking up records of one batch by their timestamps, for every engine alike."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import ApiError
from penstock.records.batch import NO_TIMESTAMP, BatchHeader
from penstock.records.records import records_block, walk
from penstock.storage.contract import TimedOffset


def first_at(batch: memoryview, header: BatchHeader, timestamp_ms: int, start_offset: int) -> TimedOffset | None:
    """The first record at or behind `start_offset` whose timestamp is not below `timestamp_ms`."""
    for record in _timed(batch, header, start_offset):
        if record.timestamp_ms >= timestamp_ms:
            return record
    return None


def max_of(batch: memoryview, header: BatchHeader, start_offset: int) -> TimedOffset | None:
    """The first record at or behind `start_offset` that has the largest timestamp of those."""
    largest = None
    for record in _timed(batch, header, start_offset):
        if record.timestamp_ms > (largest.timestamp_ms if largest else NO_TIMESTAMP):
            largest = record
    return largest


def _timed(batch: memoryview, header: BatchHeader, start_offset: int) -> Iterator[TimedOffset]:
    if header.is_control or header.last_offset < start_offset:
        return
    try:
        block = records_block(batch, header)
        for _ in walk(block, header.record_count):
            pass  # all of it can be read; kept in memory, millions of records would take hundreds of times their size
    except ApiError:
        # Records that no consumer can decode either: the batch counts as a whole, by its header.
        yield TimedOffset(max(header.base_offset, start_offset), header.max_timestamp, header.leader_epoch)
        return
    for record in walk(block, header.record_count):
        offset = header.base_offset + record.offset_delta
        if offset >= start_offset:
            # With the time of the append, all records of a batch have the batch's.
            timestamp = (
                header.max_timestamp if header.uses_append_time else header.base_timestamp + record.timestamp_delta
            )
            yield TimedOffset(offset, timestamp, header.leader_epoch)
