"""Words for what classic groups are told and write."""

from __future__ import annotations

from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.members import Protocol
from penstock.groups.classic.subscription import topics_of
from penstock.groups.events import Joined
from penstock.groups.offsets import GroupTombstone, OffsetRecord
from penstock.groups.pause import NOT_PAUSED
from penstock.protocol.messages.consumer_protocol import (
    ASSIGNMENT,
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolSubscription,
)
from support.consumer_words import plan, spelled_plan


def protocol(text: str, kind: str) -> Protocol:
    """`range:orders,bills`, with `+p` for data, or `@orders/0,1` for partitions that the member says it owns."""
    name, _, wanted = text.partition(":")
    if kind != PROTOCOL_TYPE:
        return Protocol(name, wanted.encode())
    wanted, _, owned = wanted.partition("@")
    topics, _, data = wanted.partition("+")
    subscription = ConsumerProtocolSubscription(
        topics=tuple(topics.split(",")),
        user_data=data.encode() or None,
        owned_partitions=ASSIGNMENT.decode(plan(owned)).assigned_partitions if owned else (),
    )
    return Protocol(name, SUBSCRIPTION.encode(subscription))


def joined(answer: Joined) -> str:
    """An answer without an error."""
    known = " ".join(
        f"{member_id}{f'[{instance_id}]' if instance_id else ''}({_wants(metadata)})"
        for member_id, instance_id, metadata in answer.members
    )
    role = f"leads {known}" if answer.members else f"follows {answer.leader or 'nobody'}"
    keeps = ", keeps the plan" if answer.skip_assignment else ""
    return f"joined as {answer.member_id}, generation {answer.generation}, {answer.protocol}, {role}{keeps}"


def written(record: GroupTombstone | OffsetRecord | GenerationRecord) -> str:
    if isinstance(record, GroupTombstone):
        return f"group {record.group_id} is gone"
    if isinstance(record, OffsetRecord):
        place = f"{record.group_id} {record.at.topic}/{record.at.partition}"
        return f"{place} is gone" if record.committed is None else f"{place} = {record.committed.offset}"
    members = " ".join(f"{member.member_id}={spelled_plan(member.assignment)}" for member in record.members)
    led = f"{record.protocol}, led by {record.leader or 'nobody'}: {members}" if record.members else "empty"
    if record.withheld != NOT_PAUSED:
        led += f", without {','.join(record.withheld.names)}"
    reset = ", reset" if record.is_reset else ""
    return f"group {record.group_id} generation {record.generation}, {led}{reset}"


def durable(group: ClassicGroup) -> tuple[object, ...]:
    protocol = group.generation.protocol or ""
    members = [
        (
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
            member.metadata_of(protocol),
            member.assignment,
        )
        for member in group.members.values()
    ]
    return group.state, group.generation, group.changed_ms, members


def _wants(metadata: bytes) -> str:
    topics = topics_of(metadata)
    return metadata.decode() if topics is None else ",".join(sorted(topics))
