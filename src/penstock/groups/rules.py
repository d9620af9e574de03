"""Limits and timeouts of groups and offsets, the same for all groups of a broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import Code
from penstock.groups.classic.members import ClassicMember
from penstock.groups.classic.roster import Roster
from penstock.groups.events import Join


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """Session timeouts and sizes of groups."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_members: int
    max_bytes: int
    """Of what members say of themselves, and of a plan."""
    new_member_id: Callable[[str], str]
    """A fresh member id from the client's id or the member's instance id."""
    new_member_join_ms: int = 300_000
    """How long a new member is taken to wait for its first generation; it sends no heartbeats meanwhile."""
    consumer_session_timeout_ms: int = 45_000
    """In the new protocol the broker says how long a session is, and how often members are to be heard."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is used where no member asks for another."""
    max_pattern_length: int = 512
    """Of an expression that topics are found by."""

    def new_member(self, event: Join, member_id: str, now_ms: int) -> ClassicMember:
        return ClassicMember(
            member_id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            protocols=event.protocols,
            expires_ms=now_ms + self.new_member_join_ms,
            is_new=True,
            has_synced=False,
        )

    def refusal(self, event: Join, roster: Roster) -> Code | None:
        """Why there is no place for a member, new or known, in a group."""
        if not self.min_session_timeout_ms <= event.session_timeout_ms <= self.max_session_timeout_ms:
            return Code.INVALID_SESSION_TIMEOUT
        former_id = event.member_id
        if event.instance_id is not None:
            former_id = roster.static_ids.get(event.instance_id, former_id)
        former = roster.by_id.get(former_id)
        size = roster.size + event.size - (former.size if former is not None else 0)
        if (former is None and len(roster) >= self.max_members) or size > self.max_bytes:
            return Code.GROUP_MAX_SIZE_REACHED
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRules:
    """Expiry of offsets, and the number of groups."""

    max_metadata_bytes: int
    retention_ms: int
    max_offsets: int
    """Of one group."""
    max_groups: int
    """Of one shard."""
