"""Narrows ranges by the filters of a query: on topic, partition, offset and timestamp.

Rules:
- A filter is a hint: Spark checks every row again, so what cannot be used is passed over.
- Times narrow the start only. Timestamps do not have to rise with offsets; the first record that is as young has an
  offset below which none is, and nothing of that kind can be said about ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.ids import TopicPartition
from penstock.pipeline.topics.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What rows have to be like, as far as offsets go."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None

    def of(self, ranges: Iterable[Range]) -> list[Range]:
        """The parts of these ranges that can hold such rows; time is not looked at."""
        kept = []
        for each in ranges:
            if self.topics is not None and each.topic not in self.topics:
                continue
            if self.partitions is not None and each.partition not in self.partitions:
                continue
            start = each.start if self.first is None else max(each.start, self.first)
            end = each.end if self.last is None else min(each.end, self.last + 1)
            if start < end:
                kept.append(replace(each, start=start, end=end))
        return kept


def narrowed(filters: Sequence[Filter]) -> Narrowing:
    """All filters together; they all hold."""
    narrowing = Narrowing()
    for each in filters:
        narrowing = _and(narrowing, each)
    return narrowing


def after(ranges: Iterable[Range], since: dict[TopicPartition, int | None]) -> list[Range]:
    """Without what lies before the first record that is young enough; None: nothing is."""
    kept = []
    for each in ranges:
        first = since.get(each.at)
        if first is not None and first < each.end:
            kept.append(replace(each, start=max(each.start, first)))
    return kept


def _and(narrowing: Narrowing, each: Filter) -> Narrowing:
    from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

    attribute = getattr(each, "attribute", None)
    value: Any = getattr(each, "value", None)
    if attribute == ("topic",) and isinstance(each, EqualTo | In):
        wanted = frozenset([value] if isinstance(each, EqualTo) else value)
        return replace(narrowing, topics=wanted if narrowing.topics is None else narrowing.topics & wanted)
    if attribute == ("partition",) and isinstance(each, EqualTo | In):
        numbers = frozenset([value] if isinstance(each, EqualTo) else value)
        return replace(
            narrowing, partitions=numbers if narrowing.partitions is None else narrowing.partitions & numbers
        )
    if attribute == ("offset",):
        if isinstance(each, In):
            return _within(narrowing, min(value), max(value))
        if isinstance(each, EqualTo):
            return _within(narrowing, value, value)
        if isinstance(each, GreaterThan | GreaterThanOrEqual):
            return _within(narrowing, value + isinstance(each, GreaterThan), None)
        if isinstance(each, LessThan | LessThanOrEqual):
            return _within(narrowing, None, value - isinstance(each, LessThan))
    if attribute == ("timestamp",) and isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
        since_ms = _ms_of(value)
        if since_ms is not None:
            return replace(narrowing, since_ms=max(since_ms, narrowing.since_ms or 0))
    return narrowing


def _within(narrowing: Narrowing, first: int | None, last: int | None) -> Narrowing:
    firsts = [each for each in (narrowing.first, first) if each is not None]
    lasts = [each for each in (narrowing.last, last) if each is not None]
    return replace(narrowing, first=max(firsts, default=None), last=min(lasts, default=None))


def _ms_of(value: object) -> int | None:
    """Milliseconds since 1970 of a moment that is not before."""
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.astimezone(UTC)
    return max(0, int(moment.timestamp() * 1000))
