"""A message as people see it: decoded as far as it can be, cut if it is long, masked as rules say. Pure.

Headers are lists of names and values, never objects: a header's name is the sender's choice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from penstock.console.schemas.topic_schemas import Decoding, SchemaSet
from penstock.console.security.masking import MASKED, Mask
from penstock.sdk.headers import BIZ_ID, tags_of, text_of
from penstock.sdk.ports import Received

HEX_BYTES = 4096
"""Of binary data in lists."""
_MAX_JSON_BYTES = 1 << 20
NO_SCHEMAS = SchemaSet()


@dataclass(frozen=True, slots=True)
class Payload:
    """A key, value or header."""

    format: str
    """`json`, `text` or `hex`."""
    text: str
    size_bytes: int
    """As it is stored."""
    is_cut: bool = False
    schema: str = ""
    """The kind of schema that it was to be decoded with: `avro`, `protobuf` or `json`."""
    problem: str = ""
    """Why it was not decoded."""


@dataclass(frozen=True, slots=True)
class HeaderRow:
    name: str
    value: Payload | None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One message."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: Payload | None
    value: Payload | None
    headers: tuple[HeaderRow, ...]
    tags: tuple[str, ...]
    biz_id: str | None
    size_bytes: int
    is_masked: bool
    is_archived: bool = False
    """It comes from the lake: brokers have deleted it."""


def message_row(
    received: Received,
    mask: Mask,
    shown_bytes: int,
    schemas: SchemaSet = NO_SCHEMAS,
    hex_bytes: int = HEX_BYTES,
    *,
    is_archived: bool = False,
) -> MessageRow:
    """A message, decoded, without what the mask hides. With schemas it may take a while: call it in a thread."""
    decoded = schemas.decoded(received)
    masked = masked_message(decoded.message, mask)
    size = len(received.key or b"") + len(received.value or b"")
    size += sum(len(name) + len(value or b"") for name, value in received.headers)
    return MessageRow(
        topic=received.topic,
        partition=received.partition,
        offset=received.offset,
        timestamp_ms=received.timestamp_ms,
        key=_decoded_payload(masked.key, decoded.key, shown_bytes, hex_bytes),
        value=_decoded_payload(masked.value, decoded.value, shown_bytes, hex_bytes),
        headers=tuple(HeaderRow(name, payload(value, shown_bytes)) for name, value in masked.headers),
        tags=tags_of(masked.headers),
        biz_id=text_of(masked.headers, BIZ_ID),
        size_bytes=size,
        is_masked=masked is not decoded.message,
        is_archived=is_archived,
    )


def masked_message(received: Received, mask: Mask) -> Received:
    """The same object if nothing is masked."""
    if not mask:
        return received
    key, value = mask.key(received.key), mask.value(received.value)
    headers = tuple((name, mask.header(name, each)) for name, each in received.headers)
    if (key, value, headers) == (received.key, received.value, received.headers):
        return received
    return Received(
        topic=received.topic,
        partition=received.partition,
        offset=received.offset,
        value=value,
        key=key,
        headers=headers,
        timestamp_ms=received.timestamp_ms,
    )


def _decoded_payload(
    shown: bytes | None, decoding: Decoding | None, shown_bytes: int, hex_bytes: int
) -> Payload | None:
    found = payload(shown, shown_bytes, hex_bytes)
    if found is None or decoding is None:
        return found
    # What an error quotes of a value is masked with it.
    problem = "" if shown == MASKED.encode() else decoding.problem
    return replace(found, size_bytes=decoding.size_bytes, schema=decoding.format, problem=problem)


def payload(raw: bytes | None, shown_bytes: int, hex_bytes: int = HEX_BYTES) -> Payload | None:
    """Bytes as JSON, text or hexadecimal digits, whichever they are."""
    if raw is None:
        return None
    shown = raw[:shown_bytes]
    is_cut = len(shown) < len(raw)
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # The cut may be inside of a character.
        if is_cut and error.start >= len(shown) - 3:
            text = shown[: error.start].decode()
        else:
            digits = raw[: min(hex_bytes, shown_bytes)]
            return Payload("hex", digits.hex(" "), len(raw), len(digits) < len(raw))
    if not is_cut and _is_json(text):
        return Payload("json", text, len(raw))
    if any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        digits = raw[: min(hex_bytes, shown_bytes)]
        return Payload("hex", digits.hex(" "), len(raw), len(digits) < len(raw))
    return Payload("text", text, len(raw), is_cut)


def _is_json(text: str) -> bool:
    if len(text) > _MAX_JSON_BYTES or text[:1] not in '{["0123456789-tfn':
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
