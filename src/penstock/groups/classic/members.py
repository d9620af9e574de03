"""A member of a classic group, as its coordinator sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Protocol(NamedTuple):
    """An assignment protocol that a member supports, with its metadata for the leader."""

    name: str
    metadata: bytes


@dataclass(slots=True)
class ClassicMember:
    """One member; fields below the line are in memory only and not written to the log."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    # ---
    expires_ms: int = 0
    """When its session ends, unless it is heard from."""
    is_new: bool = False
    """It has not been in a generation yet, and may have given up waiting for its first one without our knowing."""
    join_token: object | None = None
    """Its JoinGroup that waits for the rebalance to complete; set and cleared by the roster, which counts them."""
    sync_token: object | None = None
    """Its SyncGroup that waits for the leader's plan."""
    has_synced: bool = True
    """Whether it has requested its assignment in this generation."""

    def metadata_of(self, protocol: str) -> bytes:
        return next((offered.metadata for offered in self.protocols if offered.name == protocol), b"")

    def heard(self, now_ms: int) -> None:
        self.expires_ms = now_ms + self.session_timeout_ms

    def is_over(self, now_ms: int) -> bool:
        """Its session has ended; one that waits for an answer of ours is alive, unless it has never had one."""
        is_waiting = self.join_token is not None or self.sync_token is not None
        return self.expires_ms <= now_ms and (self.is_new or not is_waiting)

    @property
    def size(self) -> int:
        """Bytes that its client makes us hold, near enough."""
        return size_of(self.instance_id, self.client_id, self.protocols)


def size_of(instance_id: str | None, client_id: str, protocols: tuple[Protocol, ...]) -> int:
    # A member's id begins with its client's id or its instance id.
    named = 2 * (len(instance_id or "") + len(client_id))
    return named + sum(len(offered.name) + len(offered.metadata) for offered in protocols)
