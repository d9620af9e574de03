"""How long: as text, as a number, as a timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.durations import duration_ms, parse_duration


@pytest.mark.parametrize(
    ("given", "ms"),
    [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), (0, 0), (1.5, 1500)],
)
def test_what_applications_say_is_understood(given: Any, ms: int) -> None:
    assert duration_ms(given) == ms


def test_a_timedelta_is_a_duration() -> None:
    assert duration_ms(timedelta(minutes=2, milliseconds=3)) == 120_003


def test_digits_alone_are_milliseconds_in_a_header_and_refused_from_an_application() -> None:
    assert parse_duration("1500") == 1500
    with pytest.raises(ValueError, match="write '1500ms' or '1500s'"):
        duration_ms("1500")


@pytest.mark.parametrize(
    "given", ["", "s", "-1s", "1 s", "1w", "1.5s", -1, float("nan"), float("inf"), None, True, b"1s"]
)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        duration_ms(given)


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        duration_ms(timedelta(seconds=-1))
