"""The headers that carry what Kafka's records lack: their names, and how their values are read and written.

Pure. Any Kafka client can write and read them; `docs/sdk.md` says what each means. What cannot be understood in a
header that somebody else wrote is taken for absent: a message is never lost because of a bad extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.sdk.ports import Headers

DELAY = "penstock-delay"
DELIVER_AT = "penstock-deliver-at"
SCHEDULE = "penstock-schedule"
TIMER_ID = "penstock-timer-id"
CANCEL = "penstock-cancel"
TAGS = "penstock-tags"
BIZ_ID = "penstock-biz-id"
SENDER = "penstock-sender"
"""Who has sent it: the client id of an application that has chosen one."""
ATTEMPT = "penstock-attempt"
"""How many deliveries have failed so far, as digits."""
ORIGIN = "penstock-origin"
"""Where the message was first: topic/partition/offset/timestamp."""
ERROR = "penstock-error"
"""Why the last delivery failed: the error's type and text."""
RESEND = "penstock-resend"
"""On a dead letter that was sent again: which one it was, as topic/partition/offset."""
SETTLED = "penstock-settled"
"""On a note in a dead-letter topic: what was done with which letter of its partition, such as `resent 42`."""
REPLY_TO = "penstock-reply-to"
CORRELATION = "penstock-correlation"

TIMING = frozenset({DELAY, DELIVER_AT, SCHEDULE, TIMER_ID, CANCEL})
"""What tells a broker when: a copy of a message must not be told twice."""
FAILING = frozenset({ATTEMPT, ORIGIN, ERROR})
"""What is written anew on every retry and dead letter."""

ERROR_BYTES = 1024
"""What is longer is cut: a stack of causes must not make a message too large to be kept."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message was first, and when."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None

    def __str__(self) -> str:
        time = "" if self.timestamp_ms is None else str(self.timestamp_ms)
        return f"{self.topic}/{self.partition}/{self.offset}/{time}"


def value_of(headers: Headers, name: str) -> bytes | None:
    """The last value under that name, as Kafka's own clients take it."""
    found = None
    for each, value in headers:
        if each == name:
            found = value
    return found


def text_of(headers: Headers, name: str) -> str | None:
    """The value as text; bytes that are not UTF-8 stay apart from each other."""
    value = value_of(headers, name)
    return None if value is None else value.decode("utf-8", "backslashreplace")


def without(headers: Headers, names: Iterable[str]) -> Headers:
    left_out = frozenset(names)
    return tuple((name, value) for name, value in headers if name not in left_out)


def tags_of(headers: Headers) -> tuple[str, ...]:
    """All tags; several headers count together, blanks around a tag do not count."""
    texts = [value.decode("utf-8", "backslashreplace") for name, value in headers if name == TAGS and value is not None]
    return tuple(tag for text in texts for tag in (part.strip() for part in text.split(",")) if tag)


def failures_of(headers: Headers) -> int:
    """How many deliveries have failed so far."""
    text = text_of(headers, ATTEMPT)
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def origin_of(headers: Headers) -> Origin | None:
    """None if the header is not there, or is none of ours."""
    parts = (text_of(headers, ORIGIN) or "").split("/")
    if len(parts) != 4 or not parts[0]:
        return None
    numbers = parts[1:] if parts[3] else parts[1:3]
    if not all(part.isascii() and part.isdigit() for part in numbers):
        return None
    return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]) if parts[3] else None)


def error_text(error: BaseException | str) -> bytes:
    """An error's type and text, cut to a bound; a text that is given stands for itself."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".removesuffix(": ")
    raw = text.encode("utf-8", "backslashreplace")
    return raw if len(raw) <= ERROR_BYTES else raw[:ERROR_BYTES].decode("utf-8", "ignore").encode()
