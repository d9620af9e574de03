"""A group is of Kafka's type classic or consumer; what both types answer."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cluster.metadata import MetadataImage
from penstock.errors import Code
from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.classic.subscription import topics_of_all
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import ConsumerRecord
from penstock.groups.events import MemberEpoch
from penstock.groups.offsets import GroupTombstone
from penstock.protocol.messages.consumer_protocol import PROTOCOL_TYPE

Group = ClassicGroup | ConsumerGroup


def is_empty(group: Group) -> bool:
    return not group.members if isinstance(group, ConsumerGroup) else group.state is GroupState.EMPTY


def is_idle(group: Group) -> bool:
    """Whether it has no members, and none is joining."""
    return not group.members if isinstance(group, ConsumerGroup) else group.is_idle


def due_ms(group: Group) -> int | None:
    """When the group has to be looked at next."""
    return group.deadlines.due_ms if isinstance(group, ConsumerGroup) else group.due_ms


def empty_since_ms(group: Group) -> int:
    return group.emptied_ms if isinstance(group, ConsumerGroup) else group.changed_ms


def kind(group: Group) -> str:
    """Kafka's name of the type, which ListGroups shows."""
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def state_name(group: Group) -> str:
    return group.state.state.value if isinstance(group, ConsumerGroup) else group.state.value


def protocol_type(group: Group) -> str:
    return PROTOCOL_TYPE if isinstance(group, ConsumerGroup) else group.generation.protocol_type


def removal(group: Group) -> Sequence[GroupTombstone | ConsumerRecord]:
    """The records that delete the group."""
    return group.state.removal() if isinstance(group, ConsumerGroup) else [GroupTombstone(group.group_id)]


def has_settled(group: Group) -> bool:
    """Whether members and subscriptions are not about to change; always so in the consumer protocol."""
    return isinstance(group, ConsumerGroup) or group.state is GroupState.STABLE


def subscribed(group: Group, image: MetadataImage) -> frozenset[str] | None:
    """The topics that members subscribe to; None if only they know."""
    if isinstance(group, ConsumerGroup):
        return group.subscribed(image)
    if not group.members:
        return frozenset()
    agreed = group.generation
    if agreed.protocol_type != PROTOCOL_TYPE or agreed.protocol is None:
        return None
    return topics_of_all(group.members.values(), agreed.protocol)


def commit_refusal(group: Group, member: MemberEpoch, *, in_transaction: bool) -> Code | None:
    """Why a member may not commit offsets for a group that has members."""
    if member.is_no_member:
        # A producer that does not say for which member it commits is fenced by its own epoch.
        return None if in_transaction else Code.UNKNOWN_MEMBER_ID
    if isinstance(group, ConsumerGroup):
        refusal = group.check(member.member_id, member.epoch)
        # Producers do not know epochs of members.
        return Code.ILLEGAL_GENERATION if in_transaction and refusal is Code.STALE_MEMBER_EPOCH else refusal
    refusal = group.check(member.member_id, member.instance_id, member.epoch)
    if refusal is None and group.state is GroupState.COMPLETING and not in_transaction:
        return Code.REBALANCE_IN_PROGRESS
    return refusal


def heard(group: Group, member_id: str, now_ms: int) -> None:
    """A commit shows that a classic member is alive; members of the consumer protocol send heartbeats."""
    member = group.members.get(member_id)
    if isinstance(group, ConsumerGroup):
        if member is not None and group.members[member_id].classic is not None:
            group.heard(member_id, now_ms)
    elif member is not None:
        group.members[member_id].heard(now_ms)
