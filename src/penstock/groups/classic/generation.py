"""A generation of a classic group: the record that makes it durable, and the replies that announce it to members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.groups.classic.members import ClassicMember
from penstock.groups.classic.roster import Roster
from penstock.groups.events import Joined, Sync, Synced
from penstock.groups.pause import NOT_PAUSED, Pause
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE

_STREAMS = "stream"
"""The protocol of Kafka Streams, whose plans name tasks beside partitions and must agree with themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """A generation of a group, as it is written to the log."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: int
    members: tuple[ClassicMember, ...]
    withheld: Pause = NOT_PAUSED
    """What of the members' assignments they were not handed."""
    is_reset: bool = False
    """Its members were put out because the offsets were set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The assignment that the members of a group have agreed on."""

    number: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    withheld: Pause = NOT_PAUSED

    @classmethod
    def of(cls, record: GenerationRecord) -> Generation:
        return cls(
            number=record.generation,
            protocol_type=record.protocol_type,
            protocol=record.protocol,
            leader=record.leader,
            withheld=record.withheld,
        )

    def is_of(self, event: Sync) -> bool:
        """Whether a member that says what was agreed upon says the same."""
        return event.protocol_type in (None, self.protocol_type) and event.protocol in (None, self.protocol)

    def joined(self, member: ClassicMember, roster: Roster, *, skip_assignment: bool = False) -> Joined:
        """The answer to a member at the end of a rebalance; the leader's lists all members."""
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
        handed_out = self.withheld.without(assignment)
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol, assignment=handed_out)

    def record(
        self, group_id: str, roster: Roster, now_ms: int, plan: Mapping[str, bytes] | None = None
    ) -> GenerationRecord:
        """The generation with the leader's plan, or with the assignments that the members have."""
        return GenerationRecord(
            group_id=group_id,
            protocol_type=self.protocol_type,
            generation=self.number,
            protocol=self.protocol,
            leader=self.leader,
            changed_ms=now_ms,
            withheld=self.withheld,
            members=tuple(
                ClassicMember(
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

    def next_empty(self) -> Generation:
        """The generation after this one, without members."""
        return replace(self, number=self.number + 1, protocol=None, leader=None, withheld=NOT_PAUSED)

    def withholding(self, pause: Pause) -> Generation:
        """Handed out under a pause, if its plan is about partitions and nothing else."""
        is_of_consumers = self.protocol_type == PROTOCOL_TYPE and self.protocol != _STREAMS
        return replace(self, withheld=pause if is_of_consumers else NOT_PAUSED)

    def led_by(self, leader: str | None) -> Generation:
        return replace(self, leader=leader)
