"""Records as columns."""

from __future__ import annotations

import pyarrow as pa

from penstock.pipeline.topics.columns import header_lists, instants
from penstock.pipeline.topics.headers import biz_id_of, due_ms_of, tags_of, written


def test_a_time_that_no_calendar_shows_is_null() -> None:
    last_ms = 253_402_300_799_999
    times_ms = [0, None, last_ms, last_ms + 1, -62_135_596_800_000, -62_135_596_800_001, 2**62]
    shown = instants(pa.array(times_ms, pa.int64())).to_pylist()
    assert [moment is not None for moment in shown] == [True, False, True, False, True, False, False]
    assert shown[2].year == 9999


def test_records_without_headers_have_none() -> None:
    lists = header_lists([[("a", b"1"), ("b", None)], None, [], [("c", b"")]]).to_pylist()
    assert lists == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        None,
        [{"key": "c", "value": b""}],
    ]


def test_headers_are_understood_as_brokers_do() -> None:
    headers = [("penstock-tags", b" a ,b,,"), ("x", b"1"), ("penstock-tags", b"b,c")]
    assert tags_of(headers) == ["a", "b", "c"]
    assert tags_of([("x", b"1")]) is None
    assert biz_id_of([("penstock-biz-id", "ä".encode())]) == "ä"
    assert due_ms_of([("penstock-deliver-at", b"12")]) == 12
    assert due_ms_of([("penstock-deliver-at", b"soon")]) is None
    said = written(["a", "b"], "id", 12)
    assert (tags_of(said), biz_id_of(said), due_ms_of(said)) == (["a", "b"], "id", 12)
    assert written(None, None, None) == []
