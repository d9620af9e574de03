"""The levels of a delay topic: one delay a partition. Pure.

5, 10            presets
1m,3m,10m        one partition each
1m,3m*2,10m      3m has two partitions
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.durations import parse_duration
from penstock.errors import ConfigError
from penstock.ids import TopicPartition
from penstock.sdk.ports import Received

PRESETS = {
    "5": "1m,3m,5m,10m,30m",
    "10": "1m,3m,5m,10m,15m,30m,60m,90m,120m,180m",
}
MOST_LEVELS = 1000
AHEAD_MS = 60_000
"""A timestamp further in the future than that is an error of the producer's clock, and would block its partition."""

_LEVEL = re.compile(r"(\w+?)(?:\*(\d{1,4}))?", re.ASCII)


def parse_partition_levels(text: str) -> tuple[int, ...]:
    """The delay of each partition, in milliseconds; a ConfigError says what is wrong."""
    levels: list[int] = []
    for word in PRESETS.get(text.strip(), text).split(","):
        match = _LEVEL.fullmatch(word.strip())
        if match is None or (match[2] is not None and not int(match[2])):
            raise ConfigError(f"levels: {word.strip()!r} is not a delay such as 30s, or 3m*2 for two partitions")
        try:
            delay_ms = parse_duration(match[1])
        except ValueError as error:
            raise ConfigError(f"levels: {error}") from None
        levels += [delay_ms] * int(match[2] or 1)
    if len(levels) > MOST_LEVELS:
        raise ConfigError(f"levels: {len(levels)} partitions; at most {MOST_LEVELS} are allowed")
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class LevelBatch:
    """What to do with messages that came."""

    due: Sequence[Received]
    rejected: Sequence[tuple[Received, str]]
    """Messages that are never due, and why."""
    waits: dict[TopicPartition, tuple[int, int]]
    """Partitions to pause: the offset to go on from, and when that is due."""


def split_by_due_time(received: Iterable[Received], levels: Sequence[int], now_ms: int) -> LevelBatch:
    """Split the messages of each partition at the first one that is not due."""
    due: list[Received] = []
    rejected: list[tuple[Received, str]] = []
    waits: dict[TopicPartition, tuple[int, int]] = {}
    for each in received:
        tp = each.topic_partition
        if tp in waits:
            continue
        if each.partition >= len(levels):
            rejected.append((each, f"partition {each.partition} has no level: there are {len(levels)}"))
            continue
        sent_ms = now_ms if each.timestamp_ms is None else each.timestamp_ms
        if sent_ms - now_ms > AHEAD_MS:
            rejected.append((each, f"its timestamp {sent_ms} is {sent_ms - now_ms} ms in the future"))
        elif sent_ms + levels[each.partition] <= now_ms:
            due.append(each)
        else:
            waits[tp] = (each.offset, sent_ms + levels[each.partition])
    return LevelBatch(due, rejected, waits)
