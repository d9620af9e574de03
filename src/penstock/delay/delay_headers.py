"""The headers of a record that ask for delayed delivery: when it is due, its timer id, or which timer it cancels.

Pure. A header that cannot be understood raises a `DelayHeaderError` that names it; no value is clamped or ignored.
`docs/delay.md` has the headers and their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stringzilla import find

from penstock.config.delay import NO_CAP
from penstock.durations import parse_duration
from penstock.recurrence import Recurrence, RecurrenceError, parse_recurrence

DELAY = b"penstock-delay"
DELIVER_AT = b"penstock-deliver-at"
SCHEDULE = b"penstock-schedule"
TIMER_ID = b"penstock-timer-id"
CANCEL = b"penstock-cancel"
NAMES = frozenset({DELAY, DELIVER_AT, SCHEDULE, TIMER_ID, CANCEL})
_SHARED = b"penstock-"
"""How all of them begin, and the headers that are of no concern here."""

MAX_DUE_MS = (1 << 48) - 1
MAX_TIMER_ID_BYTES = 255

_LEVEL = re.compile(r"level:(\d{1,4})", re.ASCII)
_DIGITS = re.compile(r"\d{1,18}", re.ASCII)

Named = tuple[bytes | memoryview, bytes | memoryview | None]


class DelayHeaderError(Exception):
    """A header that asks for something that cannot be done."""


@dataclass(frozen=True, slots=True)
class DelayRules:
    """What a topic allows."""

    max_ms: int = NO_CAP
    levels_ms: tuple[int, ...] = ()


class DelayRequest(NamedTuple):
    """What a record asks for; a cancel has no due time."""

    due_ms: int
    timer_id: bytes | None = None
    recurrence: Recurrence | None = None
    cancels: bytes | None = None

    def waits(self, now_ms: int) -> bool:
        """Whether the record goes to the companion: it is for later, or others that wait there are concerned."""
        return self.due_ms > now_ms or self.timer_id is not None or self.cancels is not None


def may_have_delay_headers(block: memoryview) -> bool:
    """Whether records that are not compressed may have one of the headers. Every batch is searched for them."""
    return find(block, _SHARED) >= 0 and any(find(block, name) >= 0 for name in NAMES)


def parse_delay_headers(headers: Iterable[Named], now_ms: int, rules: DelayRules) -> DelayRequest | None:
    """What the headers ask for; None if they ask for nothing of ours."""
    found: dict[bytes, str] = {}
    for raw_name, raw in headers:
        name = bytes(raw_name)
        if name not in NAMES:
            continue
        if name in found:
            raise DelayHeaderError(f"the header {name.decode()} is there twice")
        if raw is None:
            raise DelayHeaderError(f"the header {name.decode()} has no value")
        try:
            found[name] = bytes(raw).decode()
        except UnicodeDecodeError:
            raise DelayHeaderError(f"the header {name.decode()} is not UTF-8") from None
    if not found:
        return None
    if CANCEL in found:
        if len(found) > 1:
            other = next(name for name in found if name != CANCEL)
            raise DelayHeaderError(f"the header {CANCEL.decode()} does not go together with {other.decode()}")
        return DelayRequest(0, cancels=_timer_id(CANCEL, found[CANCEL]))
    times = [name for name in (DELAY, DELIVER_AT, SCHEDULE) if name in found]
    if len(times) > 1:
        raise DelayHeaderError(f"the header {times[0].decode()} does not go together with {times[1].decode()}")
    timer_id = _timer_id(TIMER_ID, found[TIMER_ID]) if TIMER_ID in found else None
    if not times:
        return DelayRequest(now_ms, timer_id)
    name, text = times[0], found[times[0]]
    recurrence = None
    if name == SCHEDULE:
        recurrence = _recurrence(text)
        due_ms = recurrence.first(now_ms)
    elif name == DELAY:
        due_ms = now_ms + _delay_ms(text, rules.levels_ms)
    else:
        due_ms = _time_ms(text)
    _check_due(name, text, due_ms, now_ms, rules)
    return DelayRequest(due_ms, timer_id, recurrence)


def _delay_ms(text: str, levels_ms: tuple[int, ...]) -> int:
    level = _LEVEL.fullmatch(text)
    if level is not None:
        number = int(level[1])
        if not 1 <= number <= len(levels_ms):
            raise DelayHeaderError(
                f"the header {DELAY.decode()} asks for {text}: the topic has levels 1 to {len(levels_ms)}"
            )
        return levels_ms[number - 1]
    try:
        return parse_duration(text)
    except ValueError as error:
        raise DelayHeaderError(f"the header {DELAY.decode()} cannot be understood: {error}, or level:N") from None


def _time_ms(text: str) -> int:
    if _DIGITS.fullmatch(text) is None:
        raise DelayHeaderError(
            f"the header {DELIVER_AT.decode()} is '{text}': it takes milliseconds since 1970, as digits"
        )
    return int(text)


def _recurrence(text: str) -> Recurrence:
    try:
        return parse_recurrence(text, parse_duration)
    except RecurrenceError as error:
        raise DelayHeaderError(f"the header {SCHEDULE.decode()} cannot be understood: {error}") from None


def _timer_id(name: bytes, text: str) -> bytes:
    raw = text.encode()
    if not 1 <= len(raw) <= MAX_TIMER_ID_BYTES:
        raise DelayHeaderError(
            f"the header {name.decode()} has {len(raw)} bytes: 1 to {MAX_TIMER_ID_BYTES} are allowed"
        )
    return raw


def _check_due(name: bytes, text: str, due_ms: int, now_ms: int, rules: DelayRules) -> None:
    if due_ms > MAX_DUE_MS:
        raise DelayHeaderError(f"the header {name.decode()} is '{text}': no time can be that far away")
    if rules.max_ms != NO_CAP and due_ms - now_ms > rules.max_ms:
        raise DelayHeaderError(
            f"the header {name.decode()} is '{text}': that is {due_ms - now_ms} ms from now, "
            f"the topic allows {rules.max_ms} (penstock.delay.max.ms)"
        )
