"""Messages as they stand in an HTTP request: one as headers and body, or several as a JSON array. Pure.

Headers of HTTP know neither capitals in names nor bytes in values, those of a record know both. So everything that
could be lost is written as `%` and two hexadecimal digits, as in addresses: in names all but small letters, digits,
`-`, `_` and `.`; in values all but visible ASCII, and `%` itself. `urllib.parse.unquote_to_bytes` gives back what was
there.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from penstock.sdk.headers import BIZ_ID, FAILING, RESEND, TAGS, TIMING
from penstock.sdk.message import Message

PREFIX = "penstock-"
OF_RECORD = "penstock-header-"
"""Before the name of a header of the record."""
PLAIN = frozenset({"traceparent", "tracestate"})
"""Handed on under their own names, where tracing tools look for them."""

_TOLD_OTHERWISE = TIMING | FAILING | {TAGS, BIZ_ID, RESEND}
"""Headers of a record that are ours: what the receiver can use of them has a header of its own."""
_NAME_SAFE = "-_."
_VALUE_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_CAPITAL = re.compile(r"[A-Z]")
_CONTENT_TYPE = re.compile(r"[!-~]+/[!-~]+(?: ?; ?[!-~]+)*")


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to the endpoint; a signature comes on top."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def single(message: Message, attempts: int) -> Request:
    """One message: its value is the body, all the rest are headers."""
    return Request(tuple(_headers_of(message, attempts)), message.value or b"")


def batch(messages: Sequence[Message]) -> Request:
    """Several messages as a JSON array."""
    body = json.dumps([_as_json(message) for message in messages], ensure_ascii=False, separators=(",", ":")).encode()
    return Request((("content-type", "application/json"), (f"{PREFIX}batch", str(len(messages)))), body)


def safe_name(name: str) -> str:
    """The name of a record's header as part of a name in HTTP."""
    # Capitals would not survive: in HTTP they mean the same as small letters.
    return _CAPITAL.sub(lambda found: f"%{ord(found[0]):02x}", _lower_hex(quote(name, safe=_NAME_SAFE)))


def safe_value(value: bytes | str) -> str:
    """Any bytes as a value in HTTP."""
    return quote(value, safe=_VALUE_SAFE)


def _lower_hex(quoted: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _headers_of(message: Message, attempts: int) -> Iterator[tuple[str, str]]:
    yield "content-type", _content_type(message)
    yield f"{PREFIX}topic", message.topic
    yield f"{PREFIX}partition", str(message.partition)
    yield f"{PREFIX}offset", str(message.offset)
    if message.timestamp_ms is not None:
        yield f"{PREFIX}timestamp", str(message.timestamp_ms)
    if message.key is not None:
        yield f"{PREFIX}key", safe_value(message.key)
    yield f"{PREFIX}attempt", str(message.attempt)
    yield f"{PREFIX}attempts", str(attempts)
    if message.tags:
        yield f"{PREFIX}tags", ",".join(safe_value(tag) for tag in message.tags)
    if message.biz_id is not None:
        yield f"{PREFIX}biz-id", safe_value(message.biz_id)
    if message.value is None:
        yield f"{PREFIX}null", "value"
    for name, value in message.headers:
        if name in _TOLD_OTHERWISE:
            continue
        yield name if name in PLAIN else f"{OF_RECORD}{safe_name(name)}", safe_value(value or b"")


def _content_type(message: Message) -> str:
    for name, value in message.headers:
        if name.lower() == "content-type" and value is not None:
            given = value.decode("latin-1")
            if _CONTENT_TYPE.fullmatch(given):
                return given
    return "application/octet-stream"


def _as_json(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "attempt": message.attempt,
        "tags": list(message.tags),
        "biz_id": message.biz_id,
        "headers": [
            {"name": name, **_bytes_as("value", value)}
            for name, value in message.headers
            if name not in _TOLD_OTHERWISE
        ],
        **_bytes_as("key", message.key),
        **_bytes_as("value", message.value),
    }


def _bytes_as(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text under its name, bytes that are no text in base64 under the name with `_base64` behind it."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
