"""What a message's headers ask for in a store: to wait, to replace, to cancel; and what it looks like when delivered.

Pure. The broker's own code parses the headers, so they mean the same in every form.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.brokerless.store import StoreRefusedError
from penstock.config.delay import DELAY_LEVELS, DELAY_MAX, parse_levels
from penstock.delay.delay_headers import DelayHeaderError, DelayRequest, DelayRules, parse_delay_headers
from penstock.durations import parse_duration
from penstock.recurrence import RecurrenceError, parse_recurrence
from penstock.sdk.headers import DELAY, DELIVER_AT, SCHEDULE, TIMING, text_of, without
from penstock.sdk.ports import Headers, Outgoing


def delay_rules(settings: Mapping[str, str]) -> DelayRules:
    """What a topic with these settings allows."""
    return DelayRules(
        max_ms=int(settings.get(DELAY_MAX.name, DELAY_MAX.default)),
        levels_ms=parse_levels(settings.get(DELAY_LEVELS.name, DELAY_LEVELS.default)),
    )


def delay_of(outgoing: Outgoing, now_ms: int, rules: DelayRules) -> DelayRequest | None:
    """What a message asks for; None if it is to be appended now. Raises `StoreRefusedError`."""
    if not any(name in TIMING for name, _ in outgoing.headers):
        return None
    try:
        request = parse_delay_headers([(name.encode(), value) for name, value in outgoing.headers], now_ms, rules)
    except DelayHeaderError as error:
        raise StoreRefusedError(f"{error}; the message was not stored") from None
    return request if request is not None and request.waits(now_ms) else None


def headers_when_delivered(headers: Headers, due_ms: int) -> Headers:
    """Headers as consumers receive them: a copy that is sent on must not be delayed again."""
    if not any(name in (DELAY, SCHEDULE) for name, _ in headers):
        return headers
    return (*without(headers, (DELAY, SCHEDULE)), (DELIVER_AT, str(due_ms).encode()))


def next_due_ms(headers: Headers, due_ms: int, now_ms: int) -> int | None:
    """When a message that was due comes again; None if it does not."""
    text = text_of(headers, SCHEDULE)
    if text is None:
        return None
    try:
        return parse_recurrence(text, parse_duration).next_after(due_ms, now_ms)
    except RecurrenceError:
        # A cron line whose times are all over.
        return None
