"""Changes of a consumer group as they are written to the log; None deletes what the key names."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.groups.consumer.assignment import Assignment
from penstock.groups.consumer.members import ConsumerMember, Current


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """A group epoch, and a hash of the subscribed topics when it began."""

    number: int
    topics_hash: int


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The group is in a new epoch; None: the group is deleted."""

    group_id: str
    epoch: GroupEpoch | None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    group_id: str
    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class TargetEpochRecord:
    """The target assignments of all members belong to this group epoch."""

    group_id: str
    epoch: int | None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    group_id: str
    member_id: str
    target: Assignment | None


@dataclass(frozen=True, slots=True)
class CurrentRecord:
    group_id: str
    member_id: str
    current: Current | None


ConsumerRecord = EpochRecord | MemberRecord | TargetEpochRecord | TargetRecord | CurrentRecord


def is_removal(record: ConsumerRecord) -> bool:
    match record:
        case EpochRecord(_, None) | TargetEpochRecord(_, None):
            return True
        case MemberRecord(_, _, None) | TargetRecord(_, _, None) | CurrentRecord(_, _, None):
            return True
    return False
