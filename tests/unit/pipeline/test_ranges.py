"""Ranges of offsets: splitting, limiting, narrowing."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.ids import TopicPartition
from penstock.pipeline.source.filters import Narrowing, after, narrowed
from penstock.pipeline.topics.ranges import Range, limited, split

LENGTHS = st.lists(st.integers(0, 1000), max_size=8)


def some(lengths: list[int]) -> list[Range]:
    return [Range("t", "id", number, 10, 10 + length) for number, length in enumerate(lengths)]


@given(LENGTHS, st.integers(1, 50))
def test_pieces_are_the_whole(lengths: list[int], at_least: int) -> None:
    ranges = some(lengths)
    pieces = split(ranges, at_least)
    assert all(piece.length > 0 for piece in pieces)
    for each in ranges:
        own = [piece for piece in pieces if piece.partition == each.partition]
        assert [piece.start for piece in own] == [each.start, *(piece.end for piece in own[:-1])][: len(own)]
        assert sum(piece.length for piece in own) == each.length
    assert len(pieces) >= min(at_least, sum(lengths))


@given(LENGTHS, st.integers(1, 2000))
def test_a_limit_lets_every_partition_that_has_something_move(lengths: list[int], limit: int) -> None:
    starts = {TopicPartition("t", number): 10 for number in range(len(lengths))}
    ends = {TopicPartition("t", number): 10 + length for number, length in enumerate(lengths)}
    bounded = limited(starts, ends, limit)
    # One offset each may come on top.
    assert sum(bounded.values()) - sum(starts.values()) <= limit + len(lengths)
    for at, end in bounded.items():
        assert starts[at] <= end <= ends[at]
        assert (end > starts[at]) == (ends[at] > starts[at])


def test_filters_that_say_something_of_offsets_narrow_ranges() -> None:
    ranges = [Range(topic, "id", number, 0, 100) for topic in "ab" for number in range(3)]

    def left(*filters: Filter) -> list[str]:
        return [str(each) for each in narrowed(filters).of(ranges)]

    assert left(EqualTo(("topic",), "a"), In(("partition",), (1, 7))) == ["a-1 from 0 to 100"]
    only = (EqualTo(("topic",), "b"), EqualTo(("partition",), 2))
    assert left(*only, GreaterThan(("offset",), 4), LessThan(("offset",), 9)) == ["b-2 from 5 to 9"]
    assert left(*only, GreaterThanOrEqual(("offset",), 4), LessThanOrEqual(("offset",), 9)) == ["b-2 from 4 to 10"]
    assert left(*only, In(("offset",), (7, 3))) == ["b-2 from 3 to 8"]
    assert left(*only, EqualTo(("offset",), 100)) == []
    assert left(EqualTo(("topic",), "a"), EqualTo(("topic",), "b")) == []
    assert len(left(IsNotNull(("offset",)), EqualTo(("key",), b"x"))) == len(ranges)


def test_a_time_narrows_the_start_only() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    since_ms = int(moment.timestamp() * 1000)
    assert narrowed([GreaterThan(("timestamp",), moment)]) == Narrowing(since_ms=since_ms)
    assert narrowed([LessThan(("timestamp",), moment)]) == Narrowing()
    ranges = some([100, 100, 100])
    found = {TopicPartition("t", 0): 30, TopicPartition("t", 1): None, TopicPartition("t", 2): 500}
    assert [str(each) for each in after(ranges, found)] == ["t-0 from 30 to 110"]
