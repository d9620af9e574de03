"""Deadlines of the members of a consumer group; in memory only, and restarted after a restart of the broker."""

from __future__ import annotations

from enum import Enum


class DeadlineKind(Enum):
    SESSION = "to be heard from"
    REVOKE = "to let go of partitions"
    JOIN = "to join again, in the classic protocol"
    SYNC = "to ask for its assignment, in the classic protocol"


class Deadlines:
    """Times by member and kind."""

    def __init__(self) -> None:
        self.due_ms: int | None = None
        """Nothing is over before; what was waited for may have come meanwhile."""
        self._times: dict[str, dict[DeadlineKind, int]] = {}

    def set(self, member_id: str, wait: DeadlineKind, at_ms: int) -> None:
        self._times.setdefault(member_id, {})[wait] = at_ms
        self.due_ms = at_ms if self.due_ms is None else min(self.due_ms, at_ms)

    def set_if_absent(self, member_id: str, wait: DeadlineKind, at_ms: int) -> None:
        if wait not in self._times.get(member_id, {}):
            self.set(member_id, wait, at_ms)

    def clear(self, member_id: str, wait: DeadlineKind) -> None:
        self._times.get(member_id, {}).pop(wait, None)

    def forget(self, member_id: str) -> None:
        self._times.pop(member_id, None)

    def over(self, now_ms: int, retry_ms: int) -> list[str]:
        """Members that missed their deadline; later calls name them again, but not before `retry_ms`."""
        gone = [
            member_id for member_id, times in self._times.items() if min(times.values(), default=now_ms + 1) <= now_ms
        ]
        for member_id in gone:
            times = self._times[member_id]
            times.update({wait: now_ms + retry_ms for wait, at_ms in times.items() if at_ms <= now_ms})
        self.due_ms = min((at_ms for times in self._times.values() for at_ms in times.values()), default=None)
        return gone
