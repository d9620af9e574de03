"""A generation of a group: the record that makes it durable, and what its members are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.groups.events import Joined, Synced
from penstock.groups.members import Member
from penstock.groups.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A generation of a group, as it is written to the log."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the members of a group have agreed upon."""

    number: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None

    def joined(self, member: Member, roster: Roster, *, skip_assignment: bool = False) -> Joined:
        """What a member is told at the end of a rebalance; its leader is told of everybody."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader and self.protocol is not None:
            protocol = self.protocol
            members = tuple((found.member_id, found.instance_id, found.metadata_of(protocol)) for found in roster)
        return Joined(
            generation=self.number,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
            skip_assignment=skip_assignment,
        )

    def synced(self, assignment: bytes) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol, assignment=assignment)

    def record(
        self, group_id: str, roster: Roster, now_ms: int, plan: Mapping[str, bytes] | None = None
    ) -> GroupRecord:
        """The generation with the leader's plan, or with the assignments that the members have."""
        return GroupRecord(
            group_id=group_id,
            protocol_type=self.protocol_type,
            generation=self.number,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=now_ms,
            members=tuple(
                Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=member.protocols,
                    assignment=member.assignment if plan is None else plan.get(member.member_id, b""),
                )
                for member in roster
            ),
        )

    def led_by(self, leader: str | None) -> Generation:
        return replace(self, leader=leader)
