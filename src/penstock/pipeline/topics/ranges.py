"""Ranges of offsets: what one task reads. Pure: splitting, limiting, narrowing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, from `start` up to but not including `end`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def length(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


def split(ranges: Iterable[Range], at_least: int | None) -> list[Range]:
    """At least so many ranges, of much the same length, by cutting long ones; in order, empty ones left out."""
    whole = [each for each in ranges if each.length > 0]
    if at_least is None or len(whole) >= at_least:
        return whole
    total = sum(each.length for each in whole)
    cut = []
    for each in whole:
        pieces = max(1, min(each.length, -(-at_least * each.length // total)))
        bounds = [each.start + each.length * number // pieces for number in range(pieces + 1)]
        cut += [replace(each, start=start, end=end) for start, end in pairwise(bounds)]
    return cut


def limited(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Ends that are at most about `limit` offsets away, shared by what waits in each partition.

    Every partition that has something gets at least one offset, so none is left behind for ever.
    """
    waiting = {at: max(0, end - starts[at]) for at, end in ends.items()}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    return {
        at: starts[at] + min(waiting[at], max(1, limit * waiting[at] // total)) if waiting[at] else ends[at]
        for at in ends
    }
