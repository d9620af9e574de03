"""The headers that carry what Kafka's records lack: their names, and how to read and write their values.

Pure. Any Kafka client can write and read them. A malformed header counts as absent: a message is never lost because of
it.
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
"""The client id of the application that sent the message."""
ATTEMPT = "penstock-attempt"
"""How many deliveries have failed, as digits."""
ORIGIN = "penstock-origin"
"""The original message: topic/partition/offset/timestamp."""
ERROR = "penstock-error"
"""Why the last delivery failed: type and text of the error."""
RESEND = "penstock-resend"
"""On a resent dead letter: which one it was, as topic/partition/offset."""
RETRY_TOPIC = "penstock-retry-topic"
"""On a dead letter: the retry topic to resend it to."""
SETTLED = "penstock-settled"
"""On a state record in a dead-letter topic: what was done with which offset of its partition, such as `resent 42`."""
CONTENT_TYPE = "penstock-content-type"
"""The name of the codec that a typed payload was encoded with."""
REPLY_TO = "penstock-reply-to"
CORRELATION = "penstock-correlation"

TIMING = frozenset({DELAY, DELIVER_AT, SCHEDULE, TIMER_ID, CANCEL})
"""Headers that delay or cancel: a copy of a message must not carry them."""
FAILING = frozenset({ATTEMPT, ORIGIN, ERROR, RETRY_TOPIC})
"""Headers that every retry and dead letter sets anew."""

ERROR_BYTES = 1024
"""Longer errors are cut: a chain of causes must not make a message too large."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Topic, partition, offset and timestamp of the original message."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None

    def __str__(self) -> str:
        time = "" if self.timestamp_ms is None else str(self.timestamp_ms)
        return f"{self.topic}/{self.partition}/{self.offset}/{time}"


def value_of(headers: Headers, name: str) -> bytes | None:
    """The last value with this name, as Kafka's own clients read it."""
    found = None
    for each, value in headers:
        if each == name:
            found = value
    return found


def text_of(headers: Headers, name: str) -> str | None:
    """The value as text; bytes that are not UTF-8 are escaped."""
    value = value_of(headers, name)
    return None if value is None else value.decode("utf-8", "backslashreplace")


def values_of(headers: Headers, name: str) -> tuple[bytes | None, ...]:
    """All values with this name, in order."""
    return tuple(value for each, value in headers if each == name)


def without(headers: Headers, names: Iterable[str]) -> Headers:
    left_out = frozenset(names)
    return tuple((name, value) for name, value in headers if name not in left_out)


def tags_of(headers: Headers) -> tuple[str, ...]:
    """All tags; several headers add up, and blanks around a tag are ignored."""
    texts = [value.decode("utf-8", "backslashreplace") for name, value in headers if name == TAGS and value is not None]
    return tuple(tag for text in texts for tag in (part.strip() for part in text.split(",")) if tag)


def failures_of(headers: Headers) -> int:
    """How many deliveries have failed."""
    text = text_of(headers, ATTEMPT)
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0


def origin_of(headers: Headers) -> Origin | None:
    """None if the header is absent or malformed."""
    parts = (text_of(headers, ORIGIN) or "").split("/")
    if len(parts) != 4 or not parts[0]:
        return None
    numbers = parts[1:] if parts[3] else parts[1:3]
    if not all(part.isascii() and part.isdigit() for part in numbers):
        return None
    return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]) if parts[3] else None)


def error_type(text: str) -> str | None:
    """The type that an error text begins with; None if it is only a text."""
    name, colon, _ = text.partition(": ")
    return name if (colon or name == text) and name.replace(".", "").isidentifier() else None


def error_text(error: BaseException | str) -> bytes:
    """Type and text of an error, cut to `ERROR_BYTES`; a text is used as it is."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".removesuffix(": ")
    raw = text.encode("utf-8", "backslashreplace")
    return raw if len(raw) <= ERROR_BYTES else raw[:ERROR_BYTES].decode("utf-8", "ignore").encode()
