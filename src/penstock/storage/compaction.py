"""Compaction without files: which records are superseded, and a batch without them.

A pass has two steps. First the keys of the part not compacted yet are noted with the last offset of each (`KeyTable`).
Then every batch from the start up to there is rewritten without records whose key has a later one. A tombstone (a
record without a value) goes too once consumers have had `delete.retention.ms` to see it. Offsets never change: a
rewritten batch keeps its base offset and its last offset delta, and its records keep their bytes.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.records.batch import NO_TIMESTAMP, BatchHeader, with_header
from penstock.records.compression import compress
from penstock.records.records import records_block, walk

KEY_BYTES_IN_MEMORY = 160
"""What one key takes in the table: a 16-byte digest, an int and their place in a dict."""


class KeyTable:
    """The last offset of each key in a range of the log, bounded in memory."""

    def __init__(self, memory_bytes: int) -> None:
        self._max_keys = max(1, memory_bytes // KEY_BYTES_IN_MEMORY)
        self._last: dict[bytes, int] = {}
        self.end_offset = 0
        """Offsets below are taken into account."""

    def __len__(self) -> int:
        return len(self._last)

    def add(self, batch: memoryview, header: BatchHeader) -> bool:
        """Notes the keys of a batch; False if the table was full before it, in which case the pass ends here."""
        if self._last and len(self._last) + header.record_count > self._max_keys:
            return False
        if not header.is_control:
            for record in walk(records_block(batch, header), header.record_count):
                if record.key is not None:
                    self._last[_digest(record.key)] = header.base_offset + record.offset_delta
        self.end_offset = header.next_offset
        return True

    def supersedes(self, key: memoryview, offset: int) -> bool:
        return self._last.get(_digest(key), -1) > offset


def compacted(batch: memoryview, header: BatchHeader, table: KeyTable, drop_tombstones_below: int) -> memoryview | None:
    """The batch without superseded records and expired tombstones; None if nothing remains."""
    if header.is_control:
        return batch
    block = records_block(batch, header)
    kept = bytearray()
    count, max_delta, dropped = 0, None, 0
    for record in walk(block, header.record_count):
        offset = header.base_offset + record.offset_delta
        if record.key is not None and (
            (record.value is None and offset < drop_tombstones_below) or table.supersedes(record.key, offset)
        ):
            dropped += 1
            continue
        kept += block[record.start : record.end]
        count += 1
        max_delta = record.timestamp_delta if max_delta is None else max(max_delta, record.timestamp_delta)
    if not dropped:
        return batch
    if max_delta is None:
        return None
    max_timestamp = header.max_timestamp
    if not header.uses_append_time:
        # Deltas come from the producer: whatever they say, the largest timestamp does not grow and fits its field.
        max_timestamp = min(max_timestamp, max(header.base_timestamp + max_delta, NO_TIMESTAMP))
    changed = header._replace(record_count=count, max_timestamp=max_timestamp)
    return memoryview(with_header(changed, compress(header.codec, bytes(kept))))


def _digest(key: memoryview) -> bytes:
    return blake2b(key, digest_size=16).digest()
