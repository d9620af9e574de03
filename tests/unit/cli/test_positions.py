"""Positions and times as they are written on the command line."""

from __future__ import annotations

from datetime import datetime

import pytest

from penstock.admin import AtOffset, AtTime, Earliest, LastRecords, Latest, Position
from penstock.cli.positions import parse_position, parse_time

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Earliest()),
        ("Earliest", Earliest()),
        ("end", Latest()),
        ("latest", Latest()),
        ("0", AtOffset(0)),
        ("42", AtOffset(42)),
        ("-10", LastRecords(10)),
        ("-0", LastRecords(0)),
        ("10m ago", AtTime(NOW_MS - 600_000)),
        ("90s", AtTime(NOW_MS - 90_000)),
        ("1 h ago", AtTime(NOW_MS - 3_600_000)),
        ("2d ago", AtTime(NOW_MS - 172_800_000)),
        ("1w ago", AtTime(NOW_MS - 604_800_000)),
        ("250ms ago", AtTime(NOW_MS - 250)),
        ("9999999w ago", AtTime(0)),
        ("2023-11-14T22:13:20Z", AtTime(NOW_MS)),
        ("2023-11-14T23:13:20.500+01:00", AtTime(NOW_MS + 500)),
    ],
)
def test_every_spelling_means_its_position(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 3, 1, 12, 0).astimezone()
    assert parse_position("2026-03-01T12:00", NOW_MS) == AtTime(int(local.timestamp() * 1000))


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--3", "10 minutes ago", "2026-13-01", "1y ago", "٣"])
def test_what_is_no_position_is_refused_with_all_spellings(text: str) -> None:
    with pytest.raises(ValueError, match="beginning, end, an offset"):
        parse_position(text, NOW_MS)


@pytest.mark.parametrize("text", ["42", "-3", "20260301", "soon", "beginning"])
def test_what_is_no_time_is_refused_with_all_spellings(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as"):
        parse_time(text, NOW_MS)
