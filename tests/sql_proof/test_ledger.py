"""A run is good only if everything was judged, and found once, in order and where its writer was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sql_proof.ledger import Ledger, Row, Verdict, judge, value_of
from sql_proof.report import Report

ONE, TWO = 1, 2


def row(number: int, writer: int, each: int, epoch: int = 0) -> Row:
    """The record that a writer's producer has written."""
    return Row(number, value_of(writer, each), writer, epoch)


def judged(rows: Sequence[Row], next_id: int, one: Ledger) -> Verdict:
    two = Ledger(acknowledged={value_of(TWO, 0): (0, 1)})
    return judge({ONE: one, TWO: two}, rows, next_id)


def acknowledged(*offsets: int | None) -> dict[int, tuple[int, int | None]]:
    return {value_of(ONE, number): (0, offset) for number, offset in enumerate(offsets)}


def test_what_is_there_once_in_order_and_at_its_place_is_good() -> None:
    ledger = Ledger(acknowledged(0, 2), {value_of(ONE, 2), value_of(ONE, 3)}, {value_of(ONE, 4)})
    found = judged([row(1, ONE, 0), row(2, TWO, 0), row(3, ONE, 1), row(4, ONE, 3)], 5, ledger)
    assert found.is_good
    assert (found.rows, found.acknowledged, found.unknown, found.unknown_stored, found.rolled_back) == (4, 3, 2, 1, 1)


@pytest.mark.parametrize(
    ("rows", "next_id", "ledger", "wrong"),
    [
        ([row(1, ONE, 0), row(2, TWO, 0), row(4, ONE, 1)], 5, Ledger(acknowledged(0, 3)), {"skipped": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0)], 4, Ledger(acknowledged(0)), {"skipped": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0)], 2, Ledger(acknowledged(0)), {"skipped": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0)], 3, Ledger(acknowledged(0, 2)), {"lost": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0), row(3, ONE, 0)], 4, Ledger(acknowledged(0)), {"doubled": 1}),
        ([row(1, ONE, 1), row(2, TWO, 0), row(3, ONE, 0)], 4, Ledger(acknowledged(2, 0)), {"out_of_order": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0)], 3, Ledger(acknowledged(1)), {"moved": 1}),
        ([row(1, ONE, 0), row(2, TWO, 0)], 3, Ledger(not_stored={value_of(ONE, 0)}), {"ghosts": 1}),
        ([row(1, 7, 0), row(2, TWO, 0)], 3, Ledger(), {"ghosts": 1}),
    ],
)
def test_each_thing_that_is_wrong_is_counted(
    rows: list[Row], next_id: int, ledger: Ledger, wrong: dict[str, int]
) -> None:
    found = judged(rows, next_id, ledger)
    counted = {name: getattr(found, name) for name in ("skipped", "lost", "doubled", "out_of_order", "moved", "ghosts")}
    assert {name: count for name, count in counted.items() if count} == wrong
    assert not found.is_good and (found.examples or wrong.keys() & {"out_of_order", "moved"})


def test_what_the_client_sent_anew_in_a_later_epoch_is_not_doubled() -> None:
    rows = [row(1, ONE, 0), row(2, TWO, 0), row(3, ONE, 0, epoch=1)]
    found = judged(rows, 4, Ledger(acknowledged(2)))
    assert (found.resent, found.is_good) == (1, True)


GOOD = Verdict(rows=4, acknowledged=4, unknown=0, unknown_stored=0, rolled_back=1)


def reported() -> Report:
    return Report(1, "mysql", 2, 1, 1, verdict=GOOD, readers={"consumer": (4, 0, 0), "poller": (4, 0, 0)})


def test_a_run_in_which_all_was_read_and_kept_is_good() -> None:
    assert reported().is_good
    assert "0 skipped, 0 doubled, 0 out of order" in str(reported())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: setattr(report, "verdict", None),
        lambda report: setattr(report, "verdict", replace(GOOD, lost=1)),
        lambda report: setattr(report, "verdict", replace(GOOD, rows=0)),
        lambda report: setattr(report, "stuck", "a writer waits"),
        lambda report: report.readers.clear(),
        lambda report: report.readers.update(poller=(3, 0, 0)),
        lambda report: report.readers.update(poller=(4, 1, 0)),
        lambda report: report.readers.update(consumer=(4, 0, 1)),
        lambda report: report.complaints.append("broker 1: Traceback"),
    ],
)
def test_one_thing_that_is_wrong_or_not_judged_makes_it_bad(spoil: Callable[[Report], object]) -> None:
    report = reported()
    spoil(report)
    assert not report.is_good
