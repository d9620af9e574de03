"""Converts a running group from the classic to the consumer protocol and back: the records of the conversion."""

from __future__ import annotations

from dataclasses import replace

from penstock.cluster.metadata import MetadataImage
from penstock.errors import ProtocolError
from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.members import ClassicMember
from penstock.groups.classic.roster import Roster
from penstock.groups.consumer.assignment import NOTHING, Assignment, by_topic, flat
from penstock.groups.consumer.members import ClassicSide, ConsumerMember, Current
from penstock.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from penstock.groups.consumer.state import ConsumerState
from penstock.protocol.messages.consumer_protocol import (
    ASSIGNMENT,
    PROTOCOL_TYPE,
    SUBSCRIPTION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from penstock.protocol.versioned import peek_version


def to_consumer(group: ClassicGroup, image: MetadataImage) -> list[ConsumerRecord] | None:
    """A classic group of consumers as a consumer group, in the plan and the generation it has.

    None if its members are not consumers, or cannot be understood.
    """
    if group.generation.protocol_type != PROTOCOL_TYPE:
        return None
    group_id, epoch = group.group_id, group.generation.number
    protocol = group.generation.protocol or group.roster.vote()
    records: list[ConsumerRecord] = [
        # No topics are known for it yet: whatever they are, the next epoch will be another.
        EpochRecord(group_id, GroupEpoch(epoch, 0)),
        TargetEpochRecord(group_id, epoch),
    ]
    for member in group.roster:
        try:
            subscription = SUBSCRIPTION.decode(member.metadata_of(protocol))
            assigned = from_bytes(group.generation.withheld.without(member.assignment), image)
        except ProtocolError:
            return None
        current = Current(epoch=epoch, previous_epoch=epoch, assigned=assigned)
        records += [
            MemberRecord(group_id, member.member_id, _described(member, subscription)),
            TargetRecord(group_id, member.member_id, assigned),
            CurrentRecord(group_id, member.member_id, current),
        ]
    return records


def to_classic(state: ConsumerState, image: MetadataImage, now_ms: int) -> GenerationRecord:
    """A consumer group with only classic members as a classic group; it has no leader, so it rebalances."""
    members = []
    for member in state.members.values():
        assert member.classic is not None
        members.append(
            ClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.classic.protocols,
                assignment=to_bytes(state.current_of(member.member_id).assigned, member.classic, image),
            )
        )
    return replace(
        empty_classic(state, now_ms),
        # The one that most of them know: told to join again in it, they need not drop what they have.
        generation=max(state.current_of(member_id).epoch for member_id in state.members),
        protocol=Roster(members).vote(),
        members=tuple(members),
    )


def empty_classic(state: ConsumerState, now_ms: int) -> GenerationRecord:
    """A classic group without members in place of a consumer group that has ended."""
    return GenerationRecord(
        group_id=state.group_id,
        protocol_type=PROTOCOL_TYPE,
        generation=state.epoch,
        protocol=None,
        leader=None,
        changed_ms=now_ms,
        members=(),
    )


def to_bytes(assigned: Assignment, classic: ClassicSide, image: MetadataImage) -> bytes:
    """An assignment in the encoding of the classic protocol, in the version that the member speaks."""
    version = peek_version(classic.protocols[0].metadata)
    topics = tuple(
        TopicPartition(topic=image.topic_names_by_id[topic_id], partitions=partitions)
        for topic_id, partitions in by_topic(assigned).items()
        if topic_id in image.topic_names_by_id
    )
    version = max(ASSIGNMENT.oldest, min(version, ASSIGNMENT.newest))
    return ASSIGNMENT.encode(ConsumerProtocolAssignment(assigned_partitions=topics), version)


def from_bytes(assignment: bytes, image: MetadataImage) -> Assignment:
    """The assignment that a classic leader made for a member, without topics that no longer exist."""
    if not assignment:
        return NOTHING
    return from_names(ASSIGNMENT.decode(assignment).assigned_partitions, image)


def from_names(topics: tuple[TopicPartition, ...], image: MetadataImage) -> Assignment:
    return flat((image.topics[found.topic].id, found.partitions) for found in topics if found.topic in image.topics)


def _described(member: ClassicMember, subscription: ConsumerProtocolSubscription) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )
