"""`checkpoint.json`: where each log starts and from where a crash recovery has to look; see `docs/formats/log.md`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.logs import fields
from penstock.storage.files import Files

logger = logging.getLogger(__name__)

NAME = "checkpoint.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class LogPoint:
    """What the checkpoint says of one log."""

    start: int
    recovery: int
    end: int
    high: int = -1
    """The high watermark; -1 if it was not known."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    clean: bool = False
    logs: Mapping[str, LogPoint] = field(default_factory=dict)


def load(files: Files, folder: Path) -> Checkpoint:
    """The checkpoint of a folder; without a usable one every log is recovered from its beginning."""
    content = files.read(folder / NAME)
    if content is None:
        return Checkpoint()
    try:
        return decode(content)
    except ValueError as error:
        logger.warning("ignoring an unreadable checkpoint: all logs will be scanned", extra=fields(reason=str(error)))
        return Checkpoint()


def save(files: Files, folder: Path, checkpoint: Checkpoint) -> None:
    files.replace(folder / NAME, encode(checkpoint))


def encode(checkpoint: Checkpoint) -> bytes:
    logs = {
        name: {"start": point.start, "recovery": point.recovery, "end": point.end, "high": point.high}
        for name, point in checkpoint.logs.items()
    }
    return json.dumps({"format": _FORMAT, "clean": checkpoint.clean, "logs": logs}).encode()


def decode(content: bytes) -> Checkpoint:
    """ValueError if the content is not a checkpoint."""
    try:
        data = json.loads(content)
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']} is not known here")
        logs = {name: _point(name, point) for name, point in data["logs"].items()}
        return Checkpoint(clean=data["clean"] is True, logs=logs)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a checkpoint: {error!r}") from error


def _point(name: str, data: Mapping[str, int]) -> LogPoint:
    start, recovery, end, high = data["start"], data["recovery"], data["end"], data.get("high", -1)
    if not all(isinstance(each, int) for each in (start, recovery, end, high)):
        raise ValueError(f"{name} has an offset that is no number")
    if not (0 <= start <= end and 0 <= recovery <= end):
        raise ValueError(f"{name} has offsets that contradict each other: {start}, {recovery}, {end}")
    return LogPoint(start, recovery, end, high)
