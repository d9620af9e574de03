"""Where `tail --from` begins."""

from __future__ import annotations

from datetime import datetime

import pytest

from penstock.cli.positions import At, Beginning, End, Last, Position, Since, first_offset, parse_position

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Beginning()),
        ("Earliest", Beginning()),
        ("end", End()),
        ("latest", End()),
        ("0", At(0)),
        ("42", At(42)),
        ("-10", Last(10)),
        ("-0", Last(0)),
        ("10m ago", Since(NOW_MS - 600_000)),
        ("90s", Since(NOW_MS - 90_000)),
        ("1 h ago", Since(NOW_MS - 3_600_000)),
        ("2d ago", Since(NOW_MS - 172_800_000)),
        ("1w ago", Since(NOW_MS - 604_800_000)),
        ("250ms ago", Since(NOW_MS - 250)),
        ("9999999w ago", Since(0)),
        ("2023-11-14T22:13:20Z", Since(NOW_MS)),
        ("2023-11-14T23:13:20.500+01:00", Since(NOW_MS + 500)),
    ],
)
def test_every_spelling_means_its_position(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 3, 1, 12, 0).astimezone()
    assert parse_position("2026-03-01T12:00", NOW_MS) == Since(int(local.timestamp() * 1000))


@pytest.mark.parametrize("text", ["", "soon", "1.5", "--3", "10 minutes ago", "2026-13-01", "1y ago", "٣"])
def test_what_is_no_position_is_refused_with_all_spellings(text: str) -> None:
    with pytest.raises(ValueError, match="beginning, end, an offset"):
        parse_position(text, NOW_MS)


@pytest.mark.parametrize(
    ("position", "since", "offset"),
    [
        (Beginning(), None, 5),
        (End(), None, 9),
        (At(7), None, 7),
        (At(2), None, 5),
        (At(50), None, 9),
        (Last(3), None, 6),
        (Last(100), None, 5),
        (Last(0), None, 9),
        (Since(1), 8, 8),
        (Since(1), None, 9),
    ],
)
def test_a_position_is_an_offset_inside_what_the_partition_holds(
    position: Position, since: int | None, offset: int
) -> None:
    assert first_offset(position, low=5, high=9, since=since) == offset


def test_every_position_in_an_empty_partition_is_its_end() -> None:
    for position in (Beginning(), End(), At(0), At(9), Last(4), Since(0)):
        assert first_offset(position, low=3, high=3, since=None) == 3
