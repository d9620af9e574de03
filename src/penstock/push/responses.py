"""What an endpoint's response means for the message. Pure.

2xx: delivered. A status that is configured as final: rejected. Everything else: retry, at the time that the endpoint
asks for if it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus

SAYS_WHEN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
REJECTING = frozenset({int(HTTPStatus.GONE)})
"""Default of the statuses that make a message a dead letter at once."""
MOST_WAIT_MS = 24 * 60 * 60 * 1000
"""The longest Retry-After that is honoured."""
_TEXT_CHARS = 200
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Accepted:
    """The endpoint accepted the message."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The message is retried: after `after_ms`, or after the usual delay."""

    reason: str
    after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The message becomes a dead letter."""

    reason: str


PushOutcome = Accepted | RetryLater | Refused


def outcome_of(status: int, retry_after: str | None, text: str, rejecting: frozenset[int], now_ms: int) -> PushOutcome:
    """`text` is the beginning of the answer's body, for the people who look into a dead letter."""
    if 200 <= status < 300:
        return Accepted()
    reason = _reason(status, text)
    if status in rejecting:
        return Refused(reason)
    after_ms = None
    if status in SAYS_WHEN and retry_after is not None:
        after_ms = parse_retry_after(retry_after, now_ms)
    return RetryLater(reason, after_ms)


def parse_retry_after(text: str, now_ms: int) -> int | None:
    """Milliseconds, from seconds or from a date as HTTP writes it; None if it is neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return MOST_WAIT_MS if len(text) > _DIGITS else min(int(text) * 1000, MOST_WAIT_MS)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(max(0, round(date.timestamp() * 1000) - now_ms), MOST_WAIT_MS)


def _reason(status: int, text: str) -> str:
    try:
        known = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        known = str(status)
    if 300 <= status < 400:
        known += " (redirects are not followed)"
    shown = " ".join(text.split())[:_TEXT_CHARS]
    return f"HTTP {known}: {shown}" if shown else f"HTTP {known}"
