"""What Penstock's record headers say, for columns, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

TAGS = "penstock-tags"
BIZ_ID = "penstock-biz-id"
DELIVER_AT = "penstock-deliver-at"

Headers = Sequence[tuple[str, bytes | None]]


def tags_of(headers: Headers) -> list[str] | None:
    """All of them, each once; None if there is no such header."""
    found = [value for name, value in headers if name == TAGS]
    if not found:
        return None
    words = [word.strip() for value in found for word in _text(value).split(",")]
    return list(dict.fromkeys(word for word in words if word))


def biz_id_of(headers: Headers) -> str | None:
    return next((_text(value) for name, value in headers if name == BIZ_ID), None)


def due_ms_of(headers: Headers) -> int | None:
    """When it was or is due, in milliseconds since 1970; None if that is not said, or not in digits."""
    value = next((value for name, value in headers if name == DELIVER_AT), None)
    return int(value) if value is not None and value.isdigit() else None


def written(tags: Sequence[str] | None, biz_id: str | None, due_ms: int | None) -> list[tuple[str, bytes]]:
    """The headers that say so."""
    headers = []
    if tags:
        headers.append((TAGS, ",".join(tags).encode()))
    if biz_id is not None:
        headers.append((BIZ_ID, biz_id.encode()))
    if due_ms is not None:
        headers.append((DELIVER_AT, str(due_ms).encode()))
    return headers


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
