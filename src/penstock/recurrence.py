"""Schedules: `every 5m`, and cron lines with a time zone.

Pure. A cron line has five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday). If both
days are given, either is enough, as in cron. Fields are lists of `*`, numbers, names (`jan`, `mon`) and ranges, with a
step.

Where a zone leaves an hour out, a time in it is delivered when that hour would have been over; where it has an hour
twice, a time in it counts the first time only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

_MIN_EVERY_MS = 1000
_HORIZON_DAYS = 366 * 9
"""Behind this, a line never comes true: 29 February can be eight years away."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class RecurrenceError(ValueError):
    """A schedule that cannot be understood, or never comes true."""


class Recurrence(Protocol):
    def first(self, now_ms: int) -> int:
        """When it is due first, if it was sent now."""
        ...

    def next_after(self, due_ms: int, now_ms: int) -> int:
        """When it is due again behind both; it was due at `due_ms`."""
        ...

    def first_after(self, after_ms: int, due_ms: int) -> int:
        """The first of its times behind `after_ms`, which may lie before `due_ms`, another of its times."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """At a fixed distance."""

    interval_ms: int

    def first(self, now_ms: int) -> int:
        return now_ms + self.interval_ms

    def next_after(self, due_ms: int, now_ms: int) -> int:
        missed = max(0, now_ms - due_ms) // self.interval_ms
        return due_ms + (missed + 1) * self.interval_ms

    def first_after(self, after_ms: int, due_ms: int) -> int:
        return due_ms - (due_ms - after_ms - 1) // self.interval_ms * self.interval_ms


@dataclass(frozen=True, slots=True)
class Cron:
    """At the times of a calendar."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Both days are given: a day that fits one of them fits."""
    zone: tzinfo

    def first(self, now_ms: int) -> int:
        return self._after(now_ms)

    def next_after(self, due_ms: int, now_ms: int) -> int:
        return self._after(max(due_ms, now_ms))

    def first_after(self, after_ms: int, due_ms: int) -> int:
        return self._after(after_ms)

    def _after(self, after_ms: int) -> int:
        after = _EPOCH + timedelta(milliseconds=after_ms)
        try:
            local = after.astimezone(self.zone).replace(tzinfo=None, second=0, microsecond=0, fold=0)
            last = local + timedelta(days=_HORIZON_DAYS)
            while local < last:
                local = self._next_fitting(local + _MINUTE, last)
                found = _instant(local, self.zone)
                if found > after:
                    return (found - _EPOCH) // timedelta(milliseconds=1)
        except OverflowError:
            pass
        raise RecurrenceError("it never comes true")

    def _next_fitting(self, local: datetime, last: datetime) -> datetime:
        while local < last:
            if local.month not in self.months:
                local = (local.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._fits_day(local):
                local = local.replace(hour=0, minute=0) + timedelta(days=1)
            elif local.hour not in self.hours:
                local = local.replace(minute=0) + timedelta(hours=1)
            elif local.minute not in self.minutes:
                local += _MINUTE
            else:
                return local
        raise RecurrenceError("it never comes true")

    def _fits_day(self, local: datetime) -> bool:
        by_month, by_week = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return by_month or by_week if self.either_day else by_month and by_week


def parse_recurrence(text: str, duration: Callable[[str], int]) -> Recurrence:
    """The schedule that a header asks for."""
    kind, _, rest = text.strip().partition(" ")
    words = rest.split()
    if kind == "every" and len(words) == 1:
        try:
            interval_ms = duration(words[0])
        except ValueError as error:
            raise RecurrenceError(str(error)) from None
        if interval_ms < _MIN_EVERY_MS:
            raise RecurrenceError(f"every {words[0]} is more often than once in {_MIN_EVERY_MS} ms")
        return Every(interval_ms)
    if kind == "cron" and len(words) in (5, 6):
        return _cron(words)
    raise RecurrenceError(f"'{text}' is neither 'every DURATION' nor 'cron' with five fields and perhaps a zone")


def _cron(words: list[str]) -> Cron:
    minutes, hours, days, months, weekdays = words[:5]
    weekday_numbers = _numbers(weekdays, 0, 7, _DAYS)
    return Cron(
        _numbers(minutes, 0, 59),
        _numbers(hours, 0, 23),
        _numbers(days, 1, 31),
        _numbers(months, 1, 12, ["", *_MONTHS]),
        frozenset(number % 7 for number in weekday_numbers),
        not days.startswith("*") and not weekdays.startswith("*"),
        _zone(words[5]) if len(words) == 6 else UTC,
    )


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise RecurrenceError(f"there is no time zone {name}") from None


def _numbers(field: str, low: int, high: int, names: list[str] | None = None) -> frozenset[int]:
    found: set[int] = set()
    for item in field.split(","):
        span, slash, step_text = item.partition("/")
        step = _number(step_text, 1, high, None) if slash else 1
        if span == "*":
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = _number(begin, low, high, names)
            last = _number(end, low, high, names) if dash else (high if slash else first)
        if first > last:
            raise RecurrenceError(f"'{item}' goes backwards")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, low: int, high: int, names: list[str] | None) -> int:
    if names is not None and text.lower() in names and text:
        return names.index(text.lower())
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and low <= int(text) <= high):
        raise RecurrenceError(f"'{text}' is not between {low} and {high}")
    return int(text)


def _instant(local: datetime, zone: tzinfo) -> datetime:
    """The moment at which clocks of the zone show this time; if they never do, when the hour they leave out ends."""
    found = local.replace(tzinfo=zone).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == local:
        return found
    # With the offset from before the gap the moment lies behind the change, with the one from after it before.
    late, early = found, local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    offset = early.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            early = middle
        else:
            late = middle
    return late.replace(microsecond=0)
