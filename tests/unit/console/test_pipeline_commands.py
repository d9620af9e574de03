"""What callers ask of the pipeline as arguments of a command, and what the command gives as an answer."""

from __future__ import annotations

import json

import pytest

from penstock.console.errors import ConflictError, InvalidError
from penstock.console.pipeline.commands import Place, QueryRequest, ReplayRequest, ReportName, ReportRequest, Side
from penstock.console.pipeline.results import query_answer, replay_answer, report_answer
from penstock.console.settings import PipelineSettings

PLACE = Place("broker:9092", "/lake")
SETTINGS = PipelineSettings(result_rows=500)


def test_no_value_of_a_caller_becomes_an_option() -> None:
    evil = "--master=spark://evil:7077"
    asked = ReplayRequest(source="-orders", keys=(evil,), tags=(evil,), biz_ids=(evil,), name="-x")
    found = asked.arguments(PLACE, "-target", is_rehearsal=False)
    assert found[-2:] == ("--", "-orders")
    assert [each for each in found if "evil" in each] == [f"--key={evil}", f"--tag={evil}", f"--biz-id={evil}"]
    assert {"--to=-target", "--id=-x"} <= set(found) and "--dry-run" not in found
    assert "--topics=-a,-b" in ReportRequest(topics=("-a", "-b")).arguments(PLACE, SETTINGS)


def test_a_query_is_restricted_and_is_no_argument() -> None:
    found = QueryRequest(sql="select 'secret'", side=Side.LAKE, limit=9999).arguments(PLACE, SETTINGS)
    assert found[:3] == ("sql", "-", "--restricted") and not any("secret" in each for each in found)
    assert "--lake-only" in found and "--limit=501" in found
    assert "--lake=/lake" not in QueryRequest(sql="x", side=Side.LOG).arguments(PLACE, SETTINGS)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidError, match="ends before it begins"):
        QueryRequest(sql="x", since_ms=2, until_ms=1).arguments(PLACE, SETTINGS)
    with pytest.raises(InvalidError, match="before the year 9999"):
        QueryRequest(sql="x", since_ms=2**53).arguments(PLACE, SETTINGS)
    with pytest.raises(InvalidError, match="name a pair"):
        ReportRequest(only=(ReportName.RECONCILIATION,)).arguments(PLACE, SETTINGS)


def test_numbers_that_a_browser_would_round_are_texts() -> None:
    rows = b'{"a": 9007199254740993, "b": NaN, "c": [9007199254740992, {"d": -9007199254740993}]}\n'
    answer = query_answer(rows, 10)
    assert answer.rows == (("9007199254740993", "NaN", [9007199254740992, {"d": "-9007199254740993"}]),)
    assert json.loads(json.dumps(answer.rows, allow_nan=False))


def test_an_answer_has_no_more_rows_than_were_asked_for() -> None:
    answer = query_answer(b'{"a": 1}\n{"a": 2}\n{"a": "\xff\xe2\x80\xa8"}\n', 2)
    assert answer.rows == ((1,), (2,)) and answer.is_cut
    assert query_answer(b"", 2).rows == ()


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"at": 1'])
def test_a_result_that_was_cut_off_is_told(raw: bytes) -> None:
    with pytest.raises(ConflictError, match="cut off"):
        report_answer(raw, leaves_out_quotes=False)


def test_a_dry_run_says_which_messages_go_by_key() -> None:
    told = {"id": "r", "rows": 3, "partitions": [{"partition": 1, "rows": 2}, {"partition": 2, "rows": 1}]}
    answer = replay_answer(json.dumps(told).encode(), 2)
    assert [(each.partition, each.target, each.rows) for each in answer.partitions] == [(1, 1, 2), (2, None, 1)]
    assert replay_answer(b'{"id": "r", "topic": "a", "to": "b", "sent": 7}', 2).rows == 7
