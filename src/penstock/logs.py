"""How the process logs: stdlib logging to standard error, as text for people or as JSON lines.

Rules:
- A room logs through `logging.getLogger(__name__)` and passes facts as fields, not inside the message:
  `log.info("segment rolled", extra=fields(partition="orders-0", base_offset=42))`.
- One event is one line, whatever is in it; only a traceback follows on lines of its own in the text form.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO


def fields(**values: object) -> dict[str, object]:
    """Structured facts for the `extra` of a log call."""
    return {"fields": values}


def configure(level: str, format: str, stream: TextIO | None = None, process: str | None = None) -> None:
    """Sends the process's log to `stream` (standard error); a second call replaces the first.

    `process` is the name in every line of one of several processes whose logs end up in one place.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter(process))
    root.addHandler(handler)
    root.setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """Marks the handler that `configure` put in place."""


class _Formatter(logging.Formatter):
    """Knows the name of the process, if it has one."""

    def __init__(self, process: str | None = None) -> None:
        super().__init__()
        self._process = process


class TextFormatter(_Formatter):
    """`2026-03-01T12:00:00.123Z INFO     storage  segment rolled partition=orders-0 base_offset=42`.

    The name of the process stands before the room.
    """

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={_readable(value)}" for key, value in _fields(record).items())
        where = _room(record) if self._process is None else f"{self._process} {_room(record)}"
        line = f"{_time(record)} {record.levelname:<8} {where}  {_one_line(record.getMessage())}{facts}"
        trace = _traceback(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(_Formatter):
    """One JSON object a line; fields stand beside time, level, room and message."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = dict(_fields(record))
        event |= {
            "time": _time(record),
            "level": record.levelname.lower(),
            "room": _room(record),
            "message": record.getMessage(),
        }
        if self._process is not None:
            event["process"] = self._process
        if trace := _traceback(self, record):
            event["traceback"] = trace
        return json.dumps(event, default=str, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, "fields", None) or {}


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _room(record: logging.LogRecord) -> str:
    return record.name.removeprefix("penstock.")


def _one_line(text: str) -> str:
    """Names chosen by clients reach the log: a line break in one must not forge an event."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _readable(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(char in ' "=' for char in text):
        return text
    return json.dumps(text, ensure_ascii=False)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)
