"""Schedules and their zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import parse_duration
from penstock.recurrence import RecurrenceError, parse_recurrence


def ms(*when: int, zone: str = "UTC") -> int:
    return int(datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()) * 1000  # type: ignore[arg-type,misc]


def first(text: str, now_ms: int) -> int:
    return parse_recurrence(text, parse_duration).first(now_ms)


def test_every_counts_from_the_time_of_sending() -> None:
    every = parse_recurrence("every 5m", parse_duration)
    assert every.first(1_000) == 301_000
    assert every.next_after(301_000, 301_020) == 601_000


def test_times_that_were_missed_are_left_out() -> None:
    assert parse_recurrence("every 10s", parse_duration).next_after(10_000, 45_000) == 50_000
    assert parse_recurrence("every 10s", parse_duration).next_after(10_000, 50_000) == 60_000


@pytest.mark.parametrize(
    ("text", "now", "due"),
    [
        ("cron 0 9 * * *", (2026, 3, 1, 9, 0), (2026, 3, 2, 9, 0)),
        ("cron 0 9 * * *", (2026, 3, 1, 8, 59), (2026, 3, 1, 9, 0)),
        ("cron */15 * * * *", (2026, 3, 1, 9, 1), (2026, 3, 1, 9, 15)),
        ("cron 0 9 * * 1-5", (2026, 3, 6, 10, 0), (2026, 3, 9, 9, 0)),
        ("cron 0 9 * * mon,wed", (2026, 3, 9, 10, 0), (2026, 3, 11, 9, 0)),
        ("cron 0 0 29 2 *", (2026, 3, 1, 0, 0), (2028, 2, 29, 0, 0)),
        ("cron 0 0 13 * fri", (2026, 3, 1, 0, 0), (2026, 3, 6, 0, 0)),
        ("cron 0 0 * * 7", (2026, 3, 2, 0, 0), (2026, 3, 8, 0, 0)),
        ("cron 5/20 0 1 jan,jul *", (2026, 3, 1, 0, 0), (2026, 7, 1, 0, 5)),
    ],
)
def test_a_cron_line_names_times_of_the_calendar(text: str, now: tuple[int, ...], due: tuple[int, ...]) -> None:
    assert first(text, ms(*now)) == ms(*due)


def test_a_zone_says_which_clock_is_meant() -> None:
    assert first("cron 0 9 * * * Europe/Zurich", ms(2026, 7, 1)) == ms(2026, 7, 1, 7)
    assert first("cron 0 9 * * * Europe/Zurich", ms(2026, 1, 1)) == ms(2026, 1, 1, 8)


def test_a_time_in_the_hour_that_is_left_out_is_due_at_its_end() -> None:
    before = ms(2026, 3, 29, 0)
    assert first("cron 30 2 29 3 * Europe/Zurich", before) == ms(2026, 3, 29, 1)


def test_a_time_in_the_hour_that_comes_twice_is_due_once() -> None:
    daily = parse_recurrence("cron 30 2 * * * Europe/Zurich", parse_duration)
    due = daily.first(ms(2026, 10, 24, 23))
    assert due == ms(2026, 10, 25, 0, 30)
    assert daily.next_after(due, due) == ms(2026, 10, 26, 1, 30)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every",
        "every day",
        "every 500ms",
        "cron * * * *",
        "cron 60 * * * *",
        "cron * * * * * Mars/Base",
        "cron 5-1 * * * *",
        "cron */0 * * * *",
        "cron a * * * *",
        "weekly",
        "cron * * * * * * *",
        "cron * * * * * ../etc",
    ],
)
def test_a_schedule_that_cannot_be_understood_is_an_error(text: str) -> None:
    with pytest.raises(RecurrenceError):
        parse_recurrence(text, parse_duration)


def test_a_line_that_never_comes_true_is_an_error() -> None:
    with pytest.raises(RecurrenceError, match="never"):
        first("cron 0 0 30 2 *", ms(2026, 1, 1))


@given(
    st.sampled_from(["* * * * *", "*/7 3-5 * * *", "0 0 1 * *", "30 2 * * *", "15 23 * * 0"]),
    st.sampled_from(["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    st.integers(ms(2024, 1, 1), ms(2027, 1, 1)),
)
def test_the_next_time_lies_ahead_and_fits_the_clocks_of_the_zone(line: str, zone: str, now_ms: int) -> None:
    cron = parse_recurrence(f"cron {line} {zone}", parse_duration)
    due = cron.next_after(now_ms, now_ms)
    assert due > now_ms
    local = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=due)).astimezone(ZoneInfo(zone))
    minutes, hours = line.split()[:2]
    jumped = local.utcoffset() != (local - timedelta(minutes=61)).astimezone(UTC).astimezone(ZoneInfo(zone)).utcoffset()
    if minutes.isdigit() and not jumped:
        assert local.minute == int(minutes)
    if hours.isdigit() and not jumped:
        assert local.hour == int(hours)
