"""Output formats of a record: one line, JSON, or a pattern of the user's.

Rules:
- No content of a record can break its line or control the terminal.
- JSON keeps bytes exact: text where they are UTF-8, {"base64": ...} where they are not.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

LETTERS = "%t topic, %p partition, %o offset, %k key, %v value, %T time, %h headers, %% a percent sign"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedRecord:
    """One record as a client received it; `timestamp_ms` is None where the record has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


Format = Callable[[DisplayedRecord], str]


def parse_format(text: str) -> Format:
    """`line`, `json` or a pattern; raises ValueError that lists the letters of a pattern."""
    if text == "line":
        return line
    if text == "json":
        return as_json
    return pattern(text)


def readable(data: bytes | None, absent: str = "") -> str:
    """UTF-8 as it is, except what a terminal would act on; other bytes as \\xNN."""
    if data is None:
        return absent
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def time_text(timestamp_ms: int | None) -> str:
    """UTC with milliseconds; a number outside the calendar stays a number."""
    if timestamp_ms is None:
        return ""
    try:
        moment = EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(record: DisplayedRecord) -> str:
    """orders-0 @42 2026-03-01T12:00:00.000Z key: value {header=x}."""
    parts = [f"{record.topic}-{record.partition} @{record.offset}"]
    if record.timestamp_ms is not None:
        parts.append(time_text(record.timestamp_ms))
    if record.key is not None:
        parts.append(f"{readable(record.key)}:")
    parts.append(readable(record.value, absent="<null>"))
    if record.headers:
        parts.append(f"{{{headers_text(record)}}}")
    return " ".join(parts)


def headers_text(record: DisplayedRecord) -> str:
    return ", ".join(f"{readable(name.encode())}={readable(value)}" for name, value in record.headers)


def as_json(record: DisplayedRecord) -> str:
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": exact(record.key),
            "value": exact(record.value),
            "headers": [[name, exact(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def exact(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes in JSON without loss."""
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


_PARTS: dict[str, Format] = {
    "t": lambda record: record.topic,
    "p": lambda record: str(record.partition),
    "o": lambda record: str(record.offset),
    "k": lambda record: readable(record.key),
    "v": lambda record: readable(record.value),
    "T": lambda record: time_text(record.timestamp_ms),
    "h": headers_text,
    "%": lambda record: "%",
}
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


def pattern(text: str) -> Format:
    """A pattern of %-letters and \\n, \\t; text without a letter is refused as a misspelt format name."""
    parts: list[str | Format] = []
    characters = iter(text)
    for char in characters:
        if char == "%":
            letter = next(characters, "")
            if letter not in _PARTS:
                raise ValueError(f"line, json, or a pattern of {LETTERS}; not %{letter}")
            parts.append(_PARTS[letter])
        elif char == "\\":
            letter = next(characters, "")
            parts.append(_ESCAPES.get(letter, "\\" + letter))
        else:
            parts.append(char)
    if all(isinstance(part, str) for part in parts):
        raise ValueError(f"line, json, or a pattern of {LETTERS}")
    return lambda record: "".join(part if isinstance(part, str) else part(record) for part in parts)
