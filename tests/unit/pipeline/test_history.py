"""Where the lake ends and the live log begins."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from penstock.pipeline.failure import DataLossError, PipelineError
from penstock.pipeline.lake.delta import LakeFile
from penstock.pipeline.querying.history import TimeWindow, live_range, may_have
from penstock.pipeline.topics.ranges import Range


def log(start: int, end: int) -> Range:
    return Range("orders", "id", 0, start, end)


def begins(start: int, end: int, watermark: int | None, young: int | None = 0, accepts_loss: bool = False) -> int:
    found = live_range(log(start, end), watermark=watermark, young=young, accepts_loss=accepts_loss)
    assert found.end == end
    return found.start


def test_the_log_is_read_from_where_the_lake_ends() -> None:
    assert begins(0, 100, watermark=40) == 40
    assert begins(30, 100, watermark=40) == 40
    assert begins(40, 100, watermark=40) == 40
    assert begins(0, 100, watermark=100) == 100


def test_a_log_that_was_never_archived_is_read_from_its_beginning() -> None:
    assert begins(30, 100, watermark=None, young=30) == 30


def test_a_window_begins_where_its_first_record_lies() -> None:
    assert begins(0, 100, watermark=40, young=60) == 60
    assert begins(0, 100, watermark=40, young=20) == 40
    assert begins(0, 100, watermark=40, young=None) == 100


def test_what_is_in_neither_is_an_error_unless_the_window_is_behind_it() -> None:
    with pytest.raises(DataLossError, match="begins at 50, but is archived up to 40 only: 10 offsets are nowhere"):
        begins(50, 100, watermark=40, young=50)
    assert begins(50, 100, watermark=40, young=50, accepts_loss=True) == 50
    assert begins(50, 100, watermark=40, young=70) == 70
    with pytest.raises(DataLossError, match="ends at 30, but is archived up to 40: its log was cut"):
        begins(0, 30, watermark=40)


def file(day: str, oldest: str | None, youngest: str | None) -> LakeFile:
    stats = {
        "numRecords": 1,
        "minValues": {"timestamp": oldest} if oldest else {},
        "maxValues": {"timestamp": youngest} if youngest else {},
    }
    return LakeFile("a.parquet", 1, "orders", day, 1, json.dumps(stats))


def test_files_are_left_out_by_their_day_and_by_their_statistics() -> None:
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    morning = file("2026-03-02", "2026-03-02T08:00:00.000Z", "2026-03-02T11:59:59.999Z")
    evening = file("2026-03-02", "2026-03-02T12:00:00.000Z", "2026-03-02T20:00:00.000Z")
    before = file("2026-03-01", "2026-03-01T12:00:00.000Z", "2026-03-01T20:00:00.000Z")
    every = (before, morning, evening)
    assert [may_have(each, TimeWindow()) for each in every] == [True, True, True]
    assert [may_have(each, TimeWindow(since=noon)) for each in every] == [False, False, True]
    assert [may_have(each, TimeWindow(until=noon)) for each in every] == [True, True, False]


def test_a_file_whose_records_have_no_time_is_in_no_window() -> None:
    timeless = file("2026-03-02", None, None)
    assert may_have(timeless, TimeWindow())
    assert not may_have(timeless, TimeWindow(since=datetime(2026, 3, 2, tzinfo=UTC)))


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(PipelineError, match="before it begins"):
        TimeWindow(datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC))
