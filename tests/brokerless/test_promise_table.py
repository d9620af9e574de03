"""The table in `docs/forms.md` says what the behaviour suite runs with which form."""

from __future__ import annotations

import re
from pathlib import Path

# They fill `PROMISES`.
from brokerless import test_behaviour, test_opening, test_outages, test_send_many
from support.forms import COLUMNS, PROMISES

PAGE = Path(__file__).parents[2] / "docs" / "forms.md"
SUITE = (test_behaviour, test_opening, test_outages, test_send_many)


def rows() -> list[list[str]]:
    section = PAGE.read_text().partition("## What each form promises")[2].partition("\n\nWhere they differ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]


def test_table_has_the_forms_of_the_suite() -> None:
    assert rows()[0] == ["promise", *dict.fromkeys(COLUMNS.values())]


def test_table_says_what_the_suite_runs() -> None:
    table = {row[0]: row[1:] for row in rows()[2:]}
    assert all(SUITE)
    assert table == {promise: answers(given) for promise, given in PROMISES.items()}


def answers(given: frozenset[str]) -> list[str]:
    """A cell for each column; all forms of a column answer alike."""
    said: dict[str, set[str]] = {}
    for form, column in COLUMNS.items():
        said.setdefault(column, set()).add("yes" if form in given else "no")
    return [" and ".join(sorted(each)) for each in said.values()]
