"""Resetting a group's offsets while its members run: the mark that requests it, and the guard after it.

A fenced member could commit its old positions as an anonymous client, which an empty group would accept. So the
coordinator refuses anonymous commits for a while, unless they are resets themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.group import RESET_MARK
from penstock.errors import ApiError, Code

GUARD_MS = 60_000


def asks_for_reset(metadata: Iterable[str]) -> bool:
    """Whether an anonymous commit is a reset; ApiError if only some of its partitions carry the mark."""
    # confluent-kafka sends the byte that ends a text in C along with it.
    marks = {text.rstrip("\0") == RESET_MARK for text in metadata}
    if len(marks) > 1:
        raise ApiError(Code.INVALID_REQUEST, f"either every partition carries the metadata {RESET_MARK} or none")
    return marks == {True}


class ResetGuard:
    """Whether anonymous commits are refused because members may still commit positions from before a reset."""

    __slots__ = ("_until_ms", "_was_reset")

    def __init__(self) -> None:
        self._was_reset = False
        """By the last record of the group."""
        self._until_ms = 0

    def record(self, now_ms: int, *, is_reset: bool) -> None:
        """A record of the group is in the log."""
        self._was_reset = is_reset
        if is_reset:
            self._until_ms = now_ms + GUARD_MS

    def restart(self, now_ms: int) -> None:
        """No member could come back while the group was not loaded."""
        self._until_ms = now_ms + GUARD_MS if self._was_reset else 0

    def is_on(self, now_ms: int) -> bool:
        return now_ms < self._until_ms
