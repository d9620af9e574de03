"""Where to begin reading: the words of `tail --from`, and the offset they mean in one partition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

ALLOWED = (
    "beginning, end, an offset such as 42, -N for the last N of each partition, "
    "a time such as 2026-03-01T12:00:00Z, or a while such as '10m ago'"
)

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The oldest record kept."""


@dataclass(frozen=True, slots=True)
class End:
    """What comes next."""


@dataclass(frozen=True, slots=True)
class At:
    """One offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many offsets before the end."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record of this time or later."""

    time_ms: int


Position = Beginning | End | At | Last | Since


def parse_position(text: str, now_ms: int) -> Position:
    """Reads a spelling of ALLOWED, or raises ValueError with them all; a time without a zone is local."""
    word = text.strip().lower()
    if word in ("beginning", "start", "earliest"):
        return Beginning()
    if word in ("end", "latest"):
        return End()
    if re.fullmatch(r"[0-9]{1,19}", word):
        return At(int(word))
    if re.fullmatch(r"-[0-9]{1,19}", word):
        return Last(int(word[1:]))
    if ago := re.fullmatch(r"([0-9]{1,15})\s*(ms|s|m|h|d|w)(\s+ago)?", word):
        return Since(max(0, now_ms - int(ago[1]) * UNIT_MS[ago[2]]))
    try:
        return Since(max(0, int(datetime.fromisoformat(text.strip()).timestamp() * 1000)))
    except (ValueError, OverflowError, OSError):
        raise ValueError(ALLOWED) from None


def first_offset(position: Position, low: int, high: int, since: int | None) -> int:
    """The offset to begin at in a partition that holds [low, high).

    `since` is the broker's answer for a `Since` position, None when no record is that young.
    """
    match position:
        case Beginning():
            return low
        case End():
            return high
        case At(offset):
            return min(max(offset, low), high)
        case Last(count):
            return max(low, high - count)
        case Since():
            return high if since is None else since
