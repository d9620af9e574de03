"""When schedules are due after a clock has come back."""

from __future__ import annotations

import pytest

from penstock.delay.mark_reset import next_time
from penstock.durations import parse_duration
from penstock.recurrence import parse_recurrence

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NINE = 20_000 * DAY + 9 * HOUR


def next_of(schedule: str, due_ms: int, now_ms: int, mark_ms: int) -> int:
    return next_time(parse_recurrence(schedule, parse_duration), due_ms, now_ms, mark_ms)


def test_one_with_short_steps_goes_on_at_its_next_step() -> None:
    due, now = NINE + HOUR + 5 * MINUTE, NINE + 2 * MINUTE
    assert next_of("every 5m", due, now, NINE + HOUR) == NINE + 5 * MINUTE
    assert next_of("cron */5 * * * *", due, now, NINE + HOUR) == NINE + 5 * MINUTE


def test_one_with_steps_longer_than_the_jump_does_not_repeat_what_was_delivered() -> None:
    due, now, mark = NINE + DAY, NINE - HOUR // 2, NINE + HOUR // 2
    assert next_of("every 1d", due, now, mark) == due
    assert next_of("cron 0 9 * * *", due, now, mark) == due


def test_after_a_long_jump_nobody_waits_for_its_end() -> None:
    due, now, mark = NINE + 31 * DAY, NINE - HOUR, NINE + 30 * DAY
    assert next_of("every 1d", due, now, mark) == NINE
    assert next_of("cron 0 9 * * *", due, now, mark) == NINE


@pytest.mark.parametrize("schedule", ["every 1d", "cron 0 9 * * *"])
def test_one_that_the_jump_did_not_reach_stays(schedule: str) -> None:
    assert next_of(schedule, NINE, NINE - 5 * HOUR, NINE - 4 * HOUR) == NINE


def test_never_later_than_before_and_never_in_the_past() -> None:
    for now in range(NINE - 3 * HOUR, NINE, 7 * MINUTE):
        for mark in range(now + 2000, now + 2 * HOUR, 11 * MINUTE):
            for schedule in ("every 7m", "every 90m", "cron 7,20 * * * *"):
                due = parse_recurrence(schedule, parse_duration).first_after(mark, NINE)
                assert now < next_of(schedule, due, now, mark) <= due
