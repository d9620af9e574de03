"""What a handler of a hot path gives back: the parts of a response frame, and what the metrics want to know of it."""

from __future__ import annotations

from typing import NamedTuple

from penstock.parts import Part


class ResponseFrame(NamedTuple):
    parts: list[Part]
    """None for a produce request with acks=0."""
    size: int
    failed: bool = False
    """Whether an error code is in it."""
