"""From what an application says (a delay, tags, a business id) to a message as it goes to a broker.

Pure. Whatever the broker would refuse and can be known here is refused here, with an `InvalidInputError` that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypedDict, Unpack

from penstock.durations import Duration, duration_ms, parse_duration
from penstock.recurrence import RecurrenceError, parse_recurrence
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.headers import BIZ_ID, CANCEL, DELAY, DELIVER_AT, SCHEDULE, TAGS, TIMER_ID
from penstock.sdk.ports import Headers, Outgoing

Payload = bytes | str | None
"""Of a key or a value; text becomes UTF-8."""
HeadersGiven = Mapping[str, Payload] | Iterable[tuple[str, Payload]]
Moment = datetime | int
"""A datetime with a time zone, or milliseconds since 1970."""

TIMES = ("delay", "deliver_at", "schedule")
"""Three ways to say when; one at a time."""
MAX_TIMER_ID_BYTES = 255
_MAX_DUE_MS = (1 << 48) - 1
_MAX_PARTITION = 2**31 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LEVEL = re.compile(r"level:\d{1,4}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Extras(TypedDict, total=False):
    """What can be said about a message beside its topic and its value; all of it may be left out."""

    key: Payload
    """Messages of one key go to one partition, in order."""
    headers: HeadersGiven
    """A mapping, or pairs if a name is there more than once."""
    partition: int | None
    timestamp: Moment | None
    """When it came to be; now if not given."""
    delay: Duration | None
    """It arrives that long after the broker took it: `"30s"`, seconds, a timedelta, or `"level:3"`, a level of the
    topic's."""
    deliver_at: Moment | None
    """It arrives at that time."""
    schedule: str | None
    """It arrives again and again: `"every 5m"`, `"cron 0 9 * * 1-5 Europe/Zurich"`."""
    timer_id: str | None
    """A name under which it waits: it replaces what waits under that name in its partition, and can be cancelled."""
    tags: Iterable[str]
    """For views: who consumes one gets only what has certain tags."""
    biz_id: str | None
    """The sender's own id of what this is about, by which consumers recognise duplicates."""


def compose(topic: str, value: Payload, **extras: Unpack[Extras]) -> Outgoing:
    """The message that these words ask for."""
    if unknown := extras.keys() - Extras.__annotations__.keys():
        known = ", ".join(Extras.__annotations__)
        raise InvalidInputError(f"{sorted(unknown)[0]} is not known; what can be said about a message: {known}")
    check_topic(topic)
    ours = tuple((name, text.encode()) for name, text in _ours(extras))
    given = _headers(extras.get("headers"))
    for name, _ in ours:
        if any(name == other for other, _ in given):
            raise InvalidInputError(f"the header {name} is given twice: as a parameter and among the headers")
    timestamp = extras.get("timestamp")
    return Outgoing(
        topic=topic,
        value=payload("value", value),
        key=payload("key", extras.get("key")),
        headers=given + ours,
        partition=_partition(extras.get("partition")),
        timestamp_ms=None if timestamp is None else moment_ms("timestamp", timestamp),
    )


def compose_rescheduled(topic: str, timer_id: str, value: Payload, extras: Extras) -> Outgoing:
    """The message that takes the place of the one that waits under this name."""
    if not any(extras.get(name) is not None for name in TIMES):
        raise InvalidInputError(f"to reschedule needs a time, one of {', '.join(TIMES)}")
    if "timer_id" in extras:
        raise InvalidInputError("timer_id is given twice")
    named = extras.copy()
    named["timer_id"] = timer_id
    return compose(topic, value, **named)


def compose_cancel(topic: str, timer_id: str, *, key: Payload, partition: int | None) -> Outgoing:
    """The message that cancels a pending one; it is never delivered itself."""
    check_topic(topic)
    return Outgoing(
        topic=topic,
        value=None,
        key=payload("key", key),
        headers=((CANCEL, _timer_id(timer_id).encode()),),
        partition=_partition(partition),
    )


def is_for_later(headers: Headers, now_ms: int) -> bool:
    """Whether a message waits, so that the offset told for it is not the one at which it arrives."""
    for name, value in headers:
        if name in (DELAY, SCHEDULE, TIMER_ID, CANCEL):
            return True
        if name == DELIVER_AT and value is not None and value.isdigit():
            return int(value) > now_ms
    return False


@lru_cache(maxsize=1024)
def check_topic(topic: str) -> None:
    """Fails if no topic can be called so."""
    if not isinstance(topic, str) or _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
        raise InvalidInputError(
            f"{topic!r} cannot be the name of a topic: 1 to 249 letters, digits, dots, underscores and dashes"
        )


def payload(what: str, value: Payload) -> bytes | None:
    """The bytes of a key, a value, or the value of a header."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInputError(f"the {what} is of type {type(value).__name__}: bytes, str or None are allowed")


def seconds_of(what: str, value: Duration) -> float:
    """Seconds of a duration that an application has given."""
    try:
        return duration_ms(value) / 1000
    except ValueError as error:
        raise InvalidInputError(f"{what}: {error}") from None


def moment_ms(what: str, value: Moment) -> int:
    """Milliseconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInputError(f"{what} is {value.isoformat()}, which has no time zone: say which one")
        value = (value - _EPOCH) // timedelta(milliseconds=1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(f"{what} is {value!r}: a datetime or milliseconds since 1970 are allowed")
    if not 0 <= value <= _MAX_DUE_MS:
        raise InvalidInputError(f"{what} is {value} ms since 1970: no message can be sent for that time")
    return value


def _ours(extras: Extras) -> Iterator[tuple[str, str]]:
    times = [name for name in TIMES if extras.get(name) is not None]
    if len(times) > 1:
        raise InvalidInputError(f"{times[0]} and {times[1]} do not go together: give one of them")
    if (delay := extras.get("delay")) is not None:
        yield DELAY, _delay(delay)
    if (deliver_at := extras.get("deliver_at")) is not None:
        yield DELIVER_AT, str(moment_ms("deliver_at", deliver_at))
    if (schedule := extras.get("schedule")) is not None:
        yield SCHEDULE, _schedule(schedule)
    if (timer_id := extras.get("timer_id")) is not None:
        yield TIMER_ID, _timer_id(timer_id)
    if (tags := extras.get("tags")) is not None and (joined := _tags(tags)):
        yield TAGS, joined
    if (biz_id := extras.get("biz_id")) is not None:
        yield BIZ_ID, _biz_id(biz_id)


def _delay(value: Duration) -> str:
    if isinstance(value, str) and _LEVEL.fullmatch(value):
        return value
    try:
        return str(duration_ms(value))
    except ValueError as error:
        raise InvalidInputError(f"delay: {error}") from None


def _schedule(text: str) -> str:
    try:
        parse_recurrence(text, parse_duration)
    except RecurrenceError as error:
        raise InvalidInputError(f"schedule: {error}") from None
    return text


def _timer_id(text: str) -> str:
    if not isinstance(text, str) or not 1 <= len(text.encode()) <= MAX_TIMER_ID_BYTES:
        raise InvalidInputError(f"timer_id is {text!r}: a text of 1 to {MAX_TIMER_ID_BYTES} bytes is allowed")
    return text


def _tags(tags: Iterable[str]) -> str:
    chosen = [tags] if isinstance(tags, str) else list(tags)
    for tag in chosen:
        if not isinstance(tag, str) or not tag or tag != tag.strip() or "," in tag:
            raise InvalidInputError(f"{tag!r} cannot be a tag: a text without commas, and without blanks around it")
    return ",".join(chosen)


def _biz_id(text: str) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"biz_id is {text!r}: a text that is not empty is allowed")
    return text


def _partition(partition: int | None) -> int | None:
    if partition is None:
        return None
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _MAX_PARTITION:
        raise InvalidInputError(f"partition is {partition!r}: numbers go from 0 on")
    return partition


def _headers(given: HeadersGiven | None) -> Headers:
    if given is None:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        try:
            name, value = pair
        except (TypeError, ValueError):
            raise InvalidInputError(f"{pair!r} is no header: a name and a value are") from None
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"{name!r} cannot be the name of a header: a text that is not empty can")
        found.append((name, payload(f"header {name}", value)))
    return tuple(found)
