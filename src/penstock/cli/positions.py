"""Positions and times as people write them on the command line."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.admin import Position

ALLOWED = (
    "beginning, end, an offset such as 42, -N for the last N of each partition, "
    "a time such as 2026-03-01T12:00:00Z, or an age such as '10m ago'"
)
TIMES = "a time such as 2026-03-01T12:00:00Z, or an age such as '10m ago'"
_EARLIEST = ("beginning", "start", "earliest")
_LATEST = ("end", "latest")

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_position(text: str, now_ms: int) -> Position:
    """Reads a spelling of ALLOWED, or raises ValueError with them all; a time without a zone is local."""
    from penstock.admin import AtOffset, AtTime, Earliest, LastRecords, Latest

    word = text.strip().lower()
    if word in _EARLIEST:
        return Earliest()
    if word in _LATEST:
        return Latest()
    if re.fullmatch(r"[0-9]{1,19}", word):
        return AtOffset(int(word))
    if re.fullmatch(r"-[0-9]{1,19}", word):
        return LastRecords(int(word[1:]))
    try:
        return AtTime(parse_time(text, now_ms))
    except ValueError:
        raise ValueError(ALLOWED) from None


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a spelling of TIMES, or ValueError with them."""
    word = text.strip().lower()
    if age := re.fullmatch(r"([0-9]{1,15})\s*(ms|s|m|h|d|w)(\s+ago)?", word):
        return max(0, now_ms - int(age[1]) * UNIT_MS[age[2]])
    if re.fullmatch(r"-?[0-9]+", word):
        # Some are ISO dates of the basic format; an offset is more likely meant.
        raise ValueError(TIMES)
    try:
        return max(0, int(datetime.fromisoformat(text.strip()).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ValueError(TIMES) from None


def time_option(text: str | None, option: str) -> int | None:
    """The time that an option names, in milliseconds since 1970; a usage error if it names none."""
    if text is None:
        return None
    try:
        return parse_time(text, SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected {error}", param_hint=option) from None
