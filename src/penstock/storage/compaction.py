"""Compaction without files: which records are superseded, and a batch without them.

A pass has two steps. First the keys of the part not compacted yet are noted with the last offset of each (`KeyTable`).
Then every batch from the start up to there is rewritten without records whose key has a later one. A tombstone (a
record without a value) goes too once consumers have had `delete.retention.ms` to see it. Offsets never change: a
rewritten batch keeps its base offset and its last offset delta, and its records keep their bytes.

A pass stays below the first transaction whose end is not known, so of every record it sees it is decided whether it
counts. Those of aborted transactions go and supersede nothing. A marker goes like a tombstone, but not while anything
of its transaction is left: a replay that finds a transaction's batch and no marker takes it for open. For the same
replay the last batch of each producer stays, without its records if need be (KIP-98).
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from penstock.config.topic import TopicConfig
from penstock.records.batch import CODEC_MASK, NO_TIMESTAMP, BatchHeader, with_header
from penstock.records.records import rebuilt, records_block, walk
from penstock.storage.aborted import AbortedSpans

_FORMAT = 1
_MAX_PASSES_NOTED = 32

KEY_BYTES_IN_MEMORY = 160
"""What one key takes in the table: a 16-byte digest, an int and their place in a dict."""


class Stretch(NamedTuple):
    """A part of a log that is compacted as a whole or not at all, as far as the decision needs to know it."""

    next_offset: int
    size: int
    first_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CompactionState:
    """How far compaction has come, and when each stretch was reached first."""

    cleaned: int = 0
    passes: tuple[tuple[int, int], ...] = ()
    """(offset reached, when), ascending in both."""

    def is_due(self, closed: Sequence[Stretch], config: TopicConfig, now_ms: int) -> bool:
        """Whether a pass over these stretches is worth it now."""
        dirty = [stretch for stretch in closed if stretch.next_offset > self.cleaned and stretch.size]
        if not dirty:
            return self._tombstones_due(config, now_ms)
        if now_ms - dirty[0].first_timestamp_ms > config.max_compaction_lag_ms:
            return True
        dirty_bytes = sum(stretch.size for stretch in dirty)
        return dirty_bytes / sum(stretch.size for stretch in closed) >= config.min_cleanable_dirty_ratio

    def _tombstones_due(self, config: TopicConfig, now_ms: int) -> bool:
        """A log without new records still gets one pass when tombstones of the last one have expired."""
        if not self.passes:
            return False
        reached, at_ms = self.passes[-1]
        was_last_pass_for_them = len(self.passes) > 1 and self.passes[-2][0] == reached
        return not was_last_pass_for_them and now_ms - at_ms >= config.delete_retention_ms

    def after_pass(self, reached: int, now_ms: int) -> CompactionState:
        passes = [*self.passes, (reached, now_ms)]
        if len(passes) > _MAX_PASSES_NOTED:
            # The two passes that are closest in time become one that counts from the later time: a tombstone stays a
            # little longer, never shorter. The last two are left alone, they say whether the last brought anything.
            closest = min(range(len(passes) - 2), key=lambda at: (passes[at + 1][1] - passes[at][1], -at))
            del passes[closest]
        return CompactionState(reached, tuple(passes))

    def cut(self, end_offset: int) -> CompactionState:
        """What is true of a log that was cut: nothing was compacted yet of what will come to lie behind its new end."""
        passes = tuple((min(reached, end_offset), at_ms) for reached, at_ms in self.passes)
        return CompactionState(min(self.cleaned, end_offset), passes)

    def tombstones_end(self, now_ms: int, delete_retention_ms: int) -> int:
        """Tombstones below this offset have been there long enough."""
        expired = [reached for reached, at_ms in self.passes if now_ms - at_ms >= delete_retention_ms]
        return max(expired, default=0)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": _FORMAT, "cleaned": self.cleaned, "passes": self.passes}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> CompactionState:
        """ValueError if the content is not a compaction state."""
        try:
            data = json.loads(content)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']} is not known here")
            passes = tuple((int(reached), int(at_ms)) for reached, at_ms in data["passes"])
            return cls(int(data["cleaned"]), passes)
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a compaction state: {error!r}") from error


class KeyTable:
    """The last offset of each key in a range of the log, bounded in memory."""

    def __init__(self, memory_bytes: int, aborted: AbortedSpans) -> None:
        self._aborted = aborted
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
        if not header.is_control and not self._aborted.hold(header):
            for record in walk(records_block(batch, header), header.record_count):
                if record.key is not None:
                    self._last[_digest(record.key)] = header.base_offset + record.offset_delta
        self.end_offset = header.next_offset
        return True

    def supersedes(self, key: memoryview, offset: int) -> bool:
        return self._last.get(_digest(key), -1) > offset


class Rewriting:
    """What one pass makes of each batch; they come in the order of the log."""

    def __init__(self, table: KeyTable, aborted: AbortedSpans, needed: Set[int], drop_below: int) -> None:
        self._table = table
        self._aborted = aborted
        self._needed = needed
        """Base offsets of batches that must not vanish: the last ones of each producer."""
        self._drop_below = drop_below
        """Tombstones and markers below this offset have been there long enough."""
        self._in_transaction: set[int] = set()
        """Producers of which transactional batches were kept behind their last marker."""

    def rewrite(self, batch: memoryview, header: BatchHeader) -> memoryview | None:
        """What remains of a batch; None if nothing does."""
        is_needed = header.base_offset in self._needed
        if header.is_control:
            # While a list names an aborted transaction, its marker stays: a reader that misses it leaves out the next.
            is_needed = is_needed or header.producer_id in self._in_transaction or self._aborted.hold(header)
            self._in_transaction.discard(header.producer_id)
            return batch if is_needed or header.base_offset >= self._drop_below else None
        kept = None
        if header.record_count and not self._aborted.hold(header):
            kept = compacted(batch, header, self._table, self._drop_below)
        if kept is None and is_needed:
            kept = _emptied(header)
        if kept is not None and header.is_transactional:
            self._in_transaction.add(header.producer_id)
        return kept


def compacted(batch: memoryview, header: BatchHeader, table: KeyTable, drop_tombstones_below: int) -> memoryview | None:
    """The batch without superseded records and expired tombstones; None if nothing remains."""
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
    return memoryview(rebuilt(header, bytes(kept), count, max_delta))


def _emptied(header: BatchHeader) -> memoryview:
    """A batch without records: only its offsets and what it says of its producer remain."""
    changed = header._replace(
        attributes=header.attributes & ~CODEC_MASK,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return memoryview(with_header(changed, b""))


def _digest(key: memoryview) -> bytes:
    return blake2b(key, digest_size=16).digest()
