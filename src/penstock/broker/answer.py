"""What a handler gives back: the parts of a response frame, and what the metrics want to know of it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Answer(NamedTuple):
    parts: list[Any]
    """Bytes and ranges of files; nothing at all for a produce request with acks=0."""
    size: int
    failed: bool = False
    """Whether an error code is in it."""
