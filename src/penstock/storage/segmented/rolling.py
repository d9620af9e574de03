"""When a new segment is begun: the old one is full, old, or too long for its indexes."""

from __future__ import annotations

import random

from penstock.config.topic import TopicConfig
from penstock.records.batch import BatchHeader
from penstock.storage.segmented.index import MAX_RELATIVE
from penstock.storage.segmented.segment import Segment


def must_roll(
    segment: Segment, header: BatchHeader, base_offset: int, size: int, config: TopicConfig, jitter_ms: int
) -> bool:
    """Whether a batch of so many bytes begins a new segment."""
    if segment.size == 0:
        return False
    return (
        segment.size + size > config.segment_bytes
        or base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE >> 1
        or (
            header.max_timestamp - segment.first_timestamp > config.segment_ms - jitter_ms
            and segment.first_timestamp >= 0
        )
    )


def new_jitter_ms(config: TopicConfig) -> int:
    """How much sooner the next segment is rolled by time, so that not all logs roll at once."""
    return random.randint(0, min(config.segment_jitter_ms, config.segment_ms))
