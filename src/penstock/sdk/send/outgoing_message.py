"""Builds the message that goes to a broker from what an application passes (a delay, tags, a business id).

Pure. What a broker would refuse is refused here if possible, with an `InvalidInputError` that names the argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Required, TypedDict, Unpack, cast

from penstock.durations import Duration, duration_ms, parse_duration
from penstock.recurrence import RecurrenceError, parse_recurrence
from penstock.sdk.errors import InvalidInputError
from penstock.sdk.headers import BIZ_ID, CANCEL, CONTENT_TYPE, DELAY, DELIVER_AT, SCHEDULE, TAGS, TIMER_ID
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.payloads.plain_data import is_object
from penstock.sdk.payloads.pydantic_models import PydanticModel
from penstock.sdk.ports import Headers, Outgoing
from penstock.sdk.validation import check_known

Payload = bytes | str | None
"""A key or a value; text is sent as UTF-8."""


class DataclassObject(Protocol):
    """An object of a class that `dataclasses.dataclass` decorates."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Value = Payload | DataclassObject | PydanticModel
"""The value of a message; an object is encoded by a codec."""
HeadersInput = Mapping[str, Payload] | Iterable[tuple[str, Payload]]
"""Headers as an application passes them."""
PointInTime = datetime | int
"""A datetime with a time zone, or milliseconds since 1970."""

TIMES = ("delay", "deliver_at", "schedule")
"""Three ways to set the delivery time; only one at a time."""
MAX_TIMER_ID_BYTES = 255
_MAX_DUE_MS = (1 << 48) - 1
_MAX_PARTITION = 2**31 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LEVEL = re.compile(r"level:\d{1,4}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SendOptions(TypedDict, total=False):
    """The options of `send` and its relatives. All are optional."""

    key: Payload
    """Messages with the same key go to the same partition, in order."""
    headers: HeadersInput
    """A mapping, or pairs if a name occurs more than once."""
    partition: int | None
    """The partition to send to; default: chosen by the key."""
    timestamp: PointInTime | None
    """When the message was created; default: now."""
    delay: Duration | None
    """Deliver this long after the broker received the message: `"30s"`, a number of seconds, a timedelta, or
    `"level:3"` (a delay level of the topic)."""
    deliver_at: PointInTime | None
    """Deliver at this time."""
    schedule: str | None
    """Deliver repeatedly: `"every 5m"`, `"cron 0 9 * * 1-5 Europe/Zurich"`."""
    timer_id: str | None
    """The name of a delayed message. It replaces a message with the same name in its partition, and can be cancelled.
    """
    tags: Iterable[str]
    """Tags that views select by."""
    biz_id: str | None
    """The sender's id of what the message is about; consumers deduplicate by it."""
    codec: str | None
    """The name of the codec that encodes a dataclass or a pydantic model; default: the first of the client's `codecs`,
    otherwise `"json"`."""


class SendEntry(SendOptions, total=False):
    """A message of `send_many` with options of its own: `{"value": b"order 7", "key": "ann"}`."""

    value: Required[Value]
    """The payload."""


_WITHOUT_HEADERS = frozenset({"key", "headers", "partition", "timestamp", "codec"})
"""The options of which no header of ours is made."""


def compose(topic: str, value: Value, codecs: Codecs = JSON_ONLY, /, **options: Unpack[SendOptions]) -> Outgoing:
    """Build a message; `codecs` encode a value that is an object. Raises `InvalidInputError`."""
    if not options.keys() <= SendOptions.__annotations__.keys():
        check_known("a message", options, SendOptions.__annotations__)
    check_topic(topic)
    encoded, content_type = _encoded(value, codecs, options.get("codec"))
    own = content_type
    if not options.keys() <= _WITHOUT_HEADERS:
        own = (*((name, text.encode()) for name, text in _penstock_headers(options)), *content_type)
    application = _headers(options.get("headers"))
    for name, _ in own:
        if any(name == other for other, _ in application):
            raise InvalidInputError(f"the header {name} is set twice: by an option and in headers")
    timestamp = options.get("timestamp")
    return Outgoing(
        topic=topic,
        value=encoded,
        key=payload("key", options.get("key")),
        headers=application + own,
        partition=_partition(options.get("partition")),
        timestamp_ms=None if timestamp is None else moment_ms("timestamp", timestamp),
    )


def compose_many(
    topic: str, messages: Iterable[Value | SendEntry], codecs: Codecs = JSON_ONLY, /, **options: Unpack[SendOptions]
) -> list[Outgoing]:
    """Build messages with the same options, apart from those that an entry has itself. Raises `InvalidInputError`."""
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping) or not isinstance(messages, Iterable):
        raise InvalidInputError(f"messages must be a list of values or entries, not {type(messages).__name__}")
    options = _repeatable(options)
    pattern = compose(topic, None, codecs, **_without_codec(options))
    headers, key, partition, timestamp_ms = pattern.headers, pattern.key, pattern.partition, pattern.timestamp_ms
    is_plain = options.get("codec") is None
    found: list[Outgoing] = []
    for place, message in enumerate(messages):
        if is_plain and (message is None or isinstance(message, bytes | str)):
            value = message.encode() if isinstance(message, str) else message
            found.append(Outgoing(topic, value, key, headers, partition, timestamp_ms))
            continue
        try:
            found.append(_composed(topic, message, codecs, options))
        except InvalidInputError as error:
            raise InvalidInputError(f"message {place}, counted from 0: {error}; nothing was sent") from None
    return found


def _composed(topic: str, message: Value | SendEntry, codecs: Codecs, options: SendOptions) -> Outgoing:
    if not isinstance(message, Mapping):
        return compose(topic, message, codecs, **options)
    if "value" not in message:
        raise InvalidInputError('an entry needs a "value"')
    own = dict(message)
    value = cast("Value", own.pop("value"))
    check_known("an entry", map(str, own), SendOptions.__annotations__)
    if any(own.get(name) is not None for name in TIMES):
        # The time of an entry takes the place of any that holds for all.
        own = {**dict.fromkeys(TIMES), **own}
    return compose(topic, value, codecs, **cast("SendOptions", {**options, **own}))


def _repeatable(options: SendOptions) -> SendOptions:
    """The options without iterators, which only the first message could use."""
    found = options.copy()
    for name in ("headers", "tags"):
        if isinstance(given := found.get(name), Iterator):
            found[name] = list(given)
    return found


def _without_codec(options: SendOptions) -> SendOptions:
    found = options.copy()
    found.pop("codec", None)
    return found


def compose_rescheduled(
    topic: str, timer_id: str, value: Value, options: SendOptions, codecs: Codecs = JSON_ONLY
) -> Outgoing:
    """Build the message that replaces the one waiting under a timer id. Raises `InvalidInputError`."""
    if not any(options.get(name) is not None for name in TIMES):
        raise InvalidInputError(f"reschedule needs a time: pass one of {', '.join(TIMES)}")
    if "timer_id" in options:
        raise InvalidInputError("timer_id is passed twice")
    named = options.copy()
    named["timer_id"] = timer_id
    return compose(topic, value, codecs, **named)


def compose_cancel(topic: str, timer_id: str, *, key: Payload, partition: int | None) -> Outgoing:
    """Build the record that cancels a delayed message; it is never delivered itself. Raises `InvalidInputError`."""
    check_topic(topic)
    return Outgoing(
        topic=topic,
        value=None,
        key=payload("key", key),
        headers=((CANCEL, _timer_id(timer_id).encode()),),
        partition=_partition(partition),
    )


def is_for_later(headers: Headers, now_ms: int) -> bool:
    """Whether the broker delays the message, so that the offset it reports is not that of the delivery."""
    for name, value in headers:
        if name in (DELAY, SCHEDULE, TIMER_ID, CANCEL):
            return True
        if name == DELIVER_AT and value is not None and value.isdigit():
            return int(value) > now_ms
    return False


def check_topic(topic: str) -> None:
    """Raises `InvalidInputError` if the name cannot be that of a topic."""
    if not isinstance(topic, str) or not _is_topic(topic):
        raise InvalidInputError(
            f"{topic!r} is not a topic name: use 1 to 249 letters, digits, dots, underscores and dashes"
        )


@lru_cache(maxsize=1024)
def _is_topic(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def payload(what: str, value: Payload) -> bytes | None:
    """The bytes of a key, a value, or the value of a header."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInputError(f"{what} must be bytes, str or None, not {type(value).__name__}")


def _encoded(value: Value, codecs: Codecs, codec: str | None) -> tuple[bytes | None, Headers]:
    """The bytes of a value, and the header that says how an object was encoded."""
    if value is None or isinstance(value, bytes | str | bytearray | memoryview):
        if codec is not None:
            raise InvalidInputError(
                f"codec is for dataclasses and pydantic models: the value is {type(value).__name__}"
            )
        return payload("value", value), ()
    if not is_object(value):
        raise InvalidInputError(
            f"value must be bytes, str, None, a dataclass or a pydantic model, not {type(value).__name__}"
        )
    encoded, name = codecs.encode(value, codec)
    return encoded, ((CONTENT_TYPE, name.encode()),)


def seconds_of(what: str, value: Duration) -> float:
    """The seconds of a duration that an application passed."""
    try:
        return duration_ms(value) / 1000
    except ValueError as error:
        raise InvalidInputError(f"{what}: {error}") from None


def moment_ms(what: str, value: PointInTime) -> int:
    """The milliseconds since 1970 of a time that an application passed."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInputError(f"{what} needs a time zone: {value.isoformat()} has none")
        value = (value - _EPOCH) // timedelta(milliseconds=1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(f"{what} must be a datetime or milliseconds since 1970, not {value!r}")
    if not 0 <= value <= _MAX_DUE_MS:
        raise InvalidInputError(f"{what} is out of range: {value} ms since 1970")
    return value


def _penstock_headers(options: SendOptions) -> Iterator[tuple[str, str]]:
    times = [name for name in TIMES if options.get(name) is not None]
    if len(times) > 1:
        raise InvalidInputError(f"{times[0]} and {times[1]} cannot be combined: pass one of them")
    if (delay := options.get("delay")) is not None:
        yield DELAY, _delay(delay)
    if (deliver_at := options.get("deliver_at")) is not None:
        yield DELIVER_AT, str(moment_ms("deliver_at", deliver_at))
    if (schedule := options.get("schedule")) is not None:
        yield SCHEDULE, _schedule(schedule)
    if (timer_id := options.get("timer_id")) is not None:
        yield TIMER_ID, _timer_id(timer_id)
    if (tags := options.get("tags")) is not None and (joined := _tags(tags)):
        yield TAGS, joined
    if (biz_id := options.get("biz_id")) is not None:
        yield BIZ_ID, _biz_id(biz_id)


def _delay(value: Duration) -> str:
    if isinstance(value, str) and _LEVEL.fullmatch(value):
        return value
    try:
        return str(duration_ms(value))
    except ValueError as error:
        raise InvalidInputError(f"delay: {error}") from None


def _schedule(text: str) -> str:
    if not isinstance(text, str):
        raise InvalidInputError(f"schedule must be a text such as 'every 5m', not {text!r}")
    try:
        parse_recurrence(text, parse_duration)
    except RecurrenceError as error:
        raise InvalidInputError(f"schedule: {error}") from None
    return text


def _timer_id(text: str) -> str:
    if not isinstance(text, str) or not 1 <= len(text.encode()) <= MAX_TIMER_ID_BYTES:
        raise InvalidInputError(f"timer_id must be a text of 1 to {MAX_TIMER_ID_BYTES} bytes, not {text!r}")
    return text


def _tags(tags: Iterable[str]) -> str:
    if not isinstance(tags, Iterable):
        raise InvalidInputError(f"tags must be a list of texts, not {tags!r}")
    chosen = [tags] if isinstance(tags, str) else list(tags)
    for tag in chosen:
        if not isinstance(tag, str) or not tag or tag != tag.strip() or "," in tag:
            raise InvalidInputError(f"{tag!r} is not a tag: use a text without commas and without blanks around it")
    return ",".join(chosen)


def _biz_id(text: str) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"biz_id must be a non-empty text, not {text!r}")
    return text


def _partition(partition: int | None) -> int | None:
    if partition is None:
        return None
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _MAX_PARTITION:
        raise InvalidInputError(f"partition must be a number from 0, not {partition!r}")
    return partition


def _headers(given: HeadersInput | None) -> Headers:
    if given is None:
        return ()
    pairs = given.items() if isinstance(given, Mapping) else given
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise InvalidInputError(f"headers must be a mapping or pairs of name and value, not {given!r}")
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInputError(f"{pair!r} is not a header: pass a name and a value")
        name, value = pair
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"{name!r} is not a header name: use a non-empty text")
        found.append((name, payload(f"header {name}", value)))
    return tuple(found)
