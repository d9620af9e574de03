"""What an archiver does next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import TopicPartition
from penstock.pipeline.archive.plan import QUICK_S, SLOW_S, OffsetRange, Progress, next_limit, next_of, tasks_for
from penstock.pipeline.failure import DataLossError
from penstock.pipeline.lake.record_table import Anchor
from penstock.pipeline.topics.ranges import Range

AT = TopicPartition("t", 0)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200_000)), max_size=12),
    st.integers(1, 16),
)
def test_tasks_are_the_whole_of_one_topic_each_and_in_order(lengths: list[tuple[str, int]], parallelism: int) -> None:
    pieces = [
        OffsetRange(Range(topic, f"id-{topic}", number, 7, 7 + length), Anchor(6, number))
        for number, (topic, length) in enumerate(lengths)
    ]
    tasks = tasks_for(pieces, parallelism)
    for piece in pieces:
        own = [part for task in tasks for part in task.pieces if part.range.at == piece.range.at]
        assert sum(part.range.length for part in own) == piece.range.length
        starts = [7, *(part.range.end for part in own)]
        assert [part.range.start for part in own] == starts[: len(own)]
        # Only the first part follows on the anchor.
        assert [part.anchor for part in own] == [piece.anchor, *([None] * (len(own) - 1))][: len(own)]
    assert all({part.range.topic for part in task.pieces} == {task.topic} for task in tasks)
    # A topic's last task may be short, and no task is longer than its share.
    share = max(20_000, -(-sum(length for _, length in lengths) // parallelism))
    assert all(task.length <= share for task in tasks)


def test_a_partition_is_archived_from_its_beginning_and_then_from_its_watermark() -> None:
    fresh = next_of(AT, Progress("id"), 5, 20, accepts_loss=False)
    assert (str(fresh.piece.range), fresh.piece.anchor, fresh.lost) == ("t-0 from 5 to 20", None, 0)
    further = next_of(AT, Progress("id", 12, Anchor(11, 1)), 5, 20, accepts_loss=False)
    assert (str(further.piece.range), further.piece.anchor) == ("t-0 from 12 to 20", Anchor(11, 1))


def test_a_record_that_retention_has_taken_is_not_compared() -> None:
    found = next_of(AT, Progress("id", 12, Anchor(11, 1)), 12, 20, accepts_loss=False)
    assert found.piece.anchor is None


def test_what_was_deleted_is_lost_only_if_that_is_accepted() -> None:
    behind = Progress("id", 12, Anchor(11, 1))
    with pytest.raises(DataLossError, match="3 offsets were deleted"):
        next_of(AT, behind, 15, 20, accepts_loss=False)
    found = next_of(AT, behind, 15, 20, accepts_loss=True)
    assert (str(found.piece.range), found.lost) == ("t-0 from 15 to 20", 3)
    with pytest.raises(DataLossError, match="its log was cut"):
        next_of(AT, behind, 5, 11, accepts_loss=True)


def test_batches_grow_while_they_are_quick_and_shrink_when_they_are_slow() -> None:
    assert next_limit(1000, QUICK_S / 2, most=1_000_000) == 2000
    assert next_limit(1000, QUICK_S / 2, most=1500) == 1500
    assert next_limit(1000, (QUICK_S + SLOW_S) / 2, most=1_000_000) == 1000
    assert next_limit(1000, SLOW_S * 2, most=1_000_000) == 500
    assert next_limit(1, SLOW_S * 2, most=1_000_000) == 1
