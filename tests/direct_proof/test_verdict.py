"""The judge of the proof notices every kind of fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from direct_proof.report import Report
from direct_proof.verdict import Handled, Place, Row, Verdict, delayed_value_of, judge, value_of

FIRST, SECOND, THIRD = (value_of(7, number) for number in range(3))
LATER = delayed_value_of(7, 0)
TOLD: dict[int, dict[int, Place | None]] = {7: {FIRST: (0, 0), SECOND: (0, 1), THIRD: (0, 2), LATER: None}}
ROWS = [Row(0, offset, value, 9, 0) for offset, value in enumerate((FIRST, SECOND, THIRD, LATER))]
HANDLED = [Handled(FIRST, 0), Handled(SECOND, 0), Handled(LATER, 12), Handled(THIRD, 0)]
GOOD = Verdict(rows=4, acknowledged=4, delayed=1, handled=4)


def test_what_agrees_is_good() -> None:
    found = judge(TOLD, ROWS, HANDLED)
    assert found == GOOD
    assert found.is_good


def test_message_of_unknown_outcome_may_be_there_once() -> None:
    told = {7: {value: place for value, place in TOLD[7].items() if value != THIRD}}
    assert judge(told, ROWS, HANDLED).is_good
    assert judge(told, [row for row in ROWS if row.value != THIRD], HANDLED[:3]).is_good


@pytest.mark.parametrize(
    ("rows", "handled", "fault"),
    [
        (ROWS[1:], HANDLED[1:], {"lost": 1}),
        (ROWS[:3], [each for each in HANDLED if each.value != LATER], {"lost": 1}),
        ([*ROWS, ROWS[1]._replace(offset=4)], HANDLED, {"doubled": 1}),
        ([*ROWS, ROWS[3]._replace(offset=4)], HANDLED, {"doubled": 1}),
        ([*ROWS, Row(0, 4, value_of(8, 0), 9, 0)], [*HANDLED, Handled(value_of(8, 0), 0)], {"ghosts": 1}),
        (ROWS, HANDLED[1:], {"not_handled": 1}),
        (ROWS, [*HANDLED, Handled(THIRD, 0)], {"handled_twice": 1}),
        (ROWS, [HANDLED[1], HANDLED[0], *HANDLED[2:]], {"handled_out_of_order": 1}),
        (ROWS, [*HANDLED, Handled(value_of(7, 9), 0)], {"handled_ghosts": 1}),
        (ROWS, [HANDLED[0], HANDLED[1], Handled(LATER, -1), HANDLED[3]], {"early": 1}),
    ],
)
def test_every_fault_is_counted(rows: list[Row], handled: list[Handled], fault: dict[str, int]) -> None:
    found = judge(TOLD, rows, handled)
    assert {name: getattr(found, name) for name in fault} == fault
    assert not found.is_good
    assert found.examples


def test_messages_of_one_process_in_another_order_are_counted() -> None:
    rows = [Row(0, offset, value, 9, 0) for offset, value in enumerate((SECOND, FIRST, THIRD, LATER))]
    told = {7: {FIRST: (0, 1), SECOND: (0, 0), THIRD: (0, 2), LATER: None}}
    assert judge(told, rows, HANDLED).out_of_order


def test_report_is_good_only_with_a_verdict_and_without_complaints() -> None:
    report = Report(1, "mysql", 0, 0, 8, 4, 4, verdict=GOOD)
    assert report.is_good and "verdict: good" in str(report)
    for bad in (
        replace(report, verdict=None),
        replace(report, stuck="a producer"),
        replace(report, complaints=["Traceback"]),
        replace(report, verdict=replace(GOOD, lost=1)),
        replace(report, readers={"a consumer": (4, 1, 0)}),
    ):
        assert not bad.is_good
        assert "verdict: good" not in str(bad)
