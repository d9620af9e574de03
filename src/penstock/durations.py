"""Durations: as text in settings and headers (`250ms`, `30s`, `5m`), and as applications pass them. Pure."""

from __future__ import annotations

import math
import re
from datetime import timedelta

Duration = str | int | float | timedelta
"""As applications pass it: `"30s"`, a number of seconds, or a timedelta."""

_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|d|)", re.ASCII)
_MAX_MS = 10**15 * _UNITS_MS["d"]


def parse_duration(text: str) -> int:
    """The milliseconds of `1500`, `30s`, `5m` ... Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a duration: write digits and one of ms, s, m, h, d")
    return int(match[1]) * _UNITS_MS[match[2]]


def duration_ms(value: Duration) -> int:
    """The milliseconds of a text with a unit, a number of seconds, or a timedelta. Raises ValueError.

    Text needs a unit: digits alone mean milliseconds in a header, while a number means seconds.
    """
    if isinstance(value, str):
        if value.isascii() and value.isdigit():
            raise ValueError(f"'{value}' has no unit: write '{value}ms' or '{value}s', or pass a number of seconds")
        return parse_duration(value)
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise ValueError(f"{value!r} is not a duration: pass a text such as '30s', a number of seconds, or a timedelta")
    if not math.isfinite(seconds) or not 0 <= seconds * 1000 <= _MAX_MS:
        raise ValueError(f"{value!r} is not a duration: it is negative or infinite")
    return round(seconds * 1000)
