"""How far retention moves the start of a log; segments go whole or stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.topic import TopicConfig
from penstock.storage.segmented.segment import Segment


def start_by_retention(segments: Sequence[Segment], size_bytes: int, config: TopicConfig, now_ms: int) -> int:
    """The offset below which everything is older, or more, than the topic keeps; 0 if nothing has to go."""
    return max(_start_by_age(segments, config, now_ms), _start_by_size(segments, size_bytes, config))


def _start_by_age(segments: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    start = 0
    if config.retention_ms >= 0:
        for segment in segments:
            if segment.size and _newest_ms(segment) >= now_ms - config.retention_ms:
                break
            start = segment.next_offset
    return start


def _newest_ms(segment: Segment) -> int:
    """Records may carry no timestamp at all: then the file says when it was last written to."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.file.modified_ms()


def _start_by_size(segments: Sequence[Segment], size_bytes: int, config: TopicConfig) -> int:
    """A segment goes only if what remains without it is still as much as the topic keeps."""
    start = 0
    if config.retention_bytes >= 0:
        surplus = size_bytes - config.retention_bytes
        for segment in segments:
            surplus -= segment.size
            if surplus < 0:
                break
            start = segment.next_offset
    return start
