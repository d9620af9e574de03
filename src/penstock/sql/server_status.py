"""How the servers of a database group are, as a broker sees them now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server."""

    is_up: bool | None
    """None before the first check."""
    takes_writes: bool | None = None
    lag_ms: int | None = None
    """How far a replica is behind; None if that is not known, and for a primary."""
    problem: str = ""
    """Why it does not answer, or what is wrong with it."""

    def state(self, *, is_primary: bool) -> str:
        """`up`, `down`, `read-only` (a primary that takes no writes), `writable` (a replica that does), `unknown`."""
        if self.is_up is None:
            return "unknown"
        if not self.is_up:
            return "down"
        if self.takes_writes is None or self.takes_writes == is_primary:
            return "up"
        return "read-only" if is_primary else "writable"


class DatabaseStatus(Protocol):
    """The monitor that asks the servers of all groups again and again."""

    def status(self, group: str) -> Sequence[ServerStatus]:
        """The servers of a group in the order of the metadata; none if this broker does not use the group."""
        ...
