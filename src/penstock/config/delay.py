"""Settings of a topic for delayed messages."""

from __future__ import annotations

from penstock.config.setting import Kind, Setting
from penstock.durations import parse_duration

NO_CAP = -1


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
