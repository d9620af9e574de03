"""How far retention moves the start of a log. Pure.

A log is a row of parts (segments, or batches), each of which goes whole or stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.config.archive import NO_BOUND
from penstock.config.topic import TopicConfig


class Aged(NamedTuple):
    """A part of a log, as far as retention needs to know it."""

    next_offset: int
    size: int
    newest_ms: int
    """The time of its newest record."""


class Hold(NamedTuple):
    """Keeps what lies from an offset on, beyond what retention leaves, because a reader still needs it."""

    offset: int
    max_bytes: int = NO_BOUND
    """Of what retention would not leave, it is given at most so much;"""
    max_ms: int = NO_BOUND
    """and for so much longer than `retention.ms`."""


def start_by_retention(parts: Sequence[Aged], size_bytes: int, config: TopicConfig, now_ms: int) -> int:
    """The offset below which everything is older, or more, than the topic keeps; 0 if nothing has to go."""
    return max(_start_by_age(parts, config, now_ms), _start_by_size(parts, size_bytes, config))


def start_with_hold(parts: Sequence[Aged], start: int, config: TopicConfig, now_ms: int, hold: Hold | None) -> int:
    """Where a log begins that retention alone would begin at `start`."""
    if hold is None or start <= hold.offset:
        return start
    going = [part for part in parts if part.next_offset <= start]
    size = sum(part.size for part in going)
    bound = 0
    for part in going:
        is_too_much = hold.max_bytes != NO_BOUND and size > hold.max_bytes
        is_too_old = (
            NO_BOUND not in (hold.max_ms, config.retention_ms)
            and part.newest_ms < now_ms - config.retention_ms - hold.max_ms
        )
        if not is_too_much and not is_too_old:
            break
        size -= part.size
        bound = part.next_offset
    return max(bound, hold.offset)


def lost_bytes(parts: Sequence[Aged], old_start: int, start: int, hold: Hold | None) -> int:
    """How much goes that is held: its hold has come to a bound."""
    if hold is None:
        return 0
    held_from = max(old_start, hold.offset)
    return sum(part.size for part in parts if held_from < part.next_offset <= start)


def _start_by_age(parts: Sequence[Aged], config: TopicConfig, now_ms: int) -> int:
    start = 0
    if config.retention_ms >= 0:
        for part in parts:
            if part.size and part.newest_ms >= now_ms - config.retention_ms:
                break
            start = part.next_offset
    return start


def _start_by_size(parts: Sequence[Aged], size_bytes: int, config: TopicConfig) -> int:
    """A part goes only if what remains without it is still as much as the topic keeps."""
    start = 0
    if config.retention_bytes >= 0:
        surplus = size_bytes - config.retention_bytes
        for part in parts:
            surplus -= part.size
            if surplus < 0:
                break
            start = part.next_offset
    return start
