"""Figures as SVG."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from penstock.pipeline.reports.charts import draw, short, ticks
from penstock.pipeline.reports.results import Bars, Columns, Lines, Spans


@pytest.mark.parametrize(
    ("highest", "marks"),
    [
        (0, [0.0, 1.0]),
        (3, [0, 1, 2, 3]),
        (1234, [0, 500, 1000, 1500]),
        (0.5, [0, 0.2, 0.4, 0.6]),
        (8, [0, 2, 4, 6, 8]),
    ],
)
def test_axes_have_round_numbers_that_reach_the_highest(highest: float, marks: list[float]) -> None:
    assert ticks(highest) == marks


def test_long_numbers_are_shortened() -> None:
    assert [short(each) for each in (0, 12, 1500, 2_000_000, 3.5e9)] == ["0", "12", "1.5k", "2M", "3.5G"]


def test_columns_are_as_high_as_their_values() -> None:
    drawn = draw(Columns("t", "messages", ["a", "b"], {"x": [10.0, 5.0]}))
    heights = [float(each) for each in re.findall(r'height="([\d.]+)"', drawn)]
    assert heights[0] == pytest.approx(2 * heights[1])
    assert "b: 5 messages" in drawn


def test_what_topics_are_called_cannot_become_markup() -> None:
    name = "<script>&\"'"
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    for figure in (
        Bars(name, name, [(name, 1.0)]),
        Spans(name, name, [(name, 1.0, 2.0, 3.0)]),
        Lines(name, name, {name: [(moment, 1.0)], "other": [(moment, 2.0)]}),
        Columns(name, name, [name], {name: [1.0], "other": [1.0]}),
    ):
        assert "<script>" not in draw(figure)
