"""Settings of a topic for delayed messages, and how a duration is spelled in them and in headers."""

from __future__ import annotations

import re

from penstock.config.setting import Kind, Setting

NO_CAP = -1
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|d|)", re.ASCII)


def parse_duration(text: str) -> int:
    """Milliseconds of `1500`, `30s`, `5m` ...; ValueError if it is none."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no duration: digits, and one of ms, s, m, h, d")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_levels(text: str) -> tuple[int, ...]:
    """The levels of a topic, in milliseconds, from the first on."""
    return tuple(parse_duration(item.strip()) for item in text.split(",")) if text else ()


DELAY_MAX = Setting(
    name="penstock.delay.max.ms",
    kind=Kind.LONG,
    default=str(NO_CAP),
    low=NO_CAP,
    doc="Milliseconds from now beyond which no message can be delayed; -1 sets no bound.",
)
DELAY_LEVELS = Setting(
    name="penstock.delay.levels",
    kind=Kind.STRING,
    default="1s,5s,10s,30s,1m,2m,3m,4m,5m,6m,7m,8m,9m,10m,20m,30m,1h,2h",
    make=parse_levels,
    doc="Delays that level:1, level:2 and so on stand for in the header penstock-delay.",
)
