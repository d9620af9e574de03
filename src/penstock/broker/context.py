"""What a handler may know about a request beyond its fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The request's version, and who sent it from where."""

    version: int
    client_id: str | None
    host: str
    # Over the same connection.
    has_produced: bool = False
