"""Records of consumer groups in Kafka's format (kinds 3 and 5 to 8)."""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.groups.classic.members import Protocol
from penstock.groups.consumer.assignment import Assignment, flat, topics_of
from penstock.groups.consumer.members import ClassicSide, ConsumerMember, Current, MemberState
from penstock.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    GroupEpoch,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from penstock.protocol.messages import group_records as formats
from penstock.replication.state_log import StateRecord


def encode(record: ConsumerRecord) -> StateRecord:
    match record:
        case EpochRecord(group_id, epoch):
            value = None if epoch is None else _encode_epoch(epoch)
            key = formats.ConsumerGroupMetadataKey(group_id=group_id)
            return StateRecord(formats.CONSUMER_GROUP_METADATA.key.encode(key), value)
        case TargetEpochRecord(group_id, number):
            value = None if number is None else _encode_target_epoch(number)
            target_key = formats.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
            return StateRecord(formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.key.encode(target_key), value)
        case MemberRecord(group_id, member_id, member):
            value = None if member is None else _encode_member(member)
            member_key = formats.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
            return StateRecord(formats.CONSUMER_GROUP_MEMBER_METADATA.key.encode(member_key), value)
        case TargetRecord(group_id, member_id, target):
            value = None if target is None else _encode_target(target)
            planned_key = formats.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
            return StateRecord(formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.key.encode(planned_key), value)
        case CurrentRecord(group_id, member_id, current):
            value = None if current is None else _encode_current(current)
            current_key = formats.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
            return StateRecord(formats.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.key.encode(current_key), value)


def decode(kind: object, record: StateRecord) -> ConsumerRecord | None:
    """The change in a record of one of `GROUP_RECORDS`; None if the record is not of a consumer group."""
    data = record.value
    if kind is formats.CONSUMER_GROUP_METADATA:
        group_id = formats.CONSUMER_GROUP_METADATA.key.decode(record.key).group_id
        return EpochRecord(group_id, None if data is None else _decode_epoch(data))
    if kind is formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA:
        group_id = formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.key.decode(record.key).group_id
        return TargetEpochRecord(group_id, None if data is None else _decode_target_epoch(data))
    if kind is formats.CONSUMER_GROUP_MEMBER_METADATA:
        member_key = formats.CONSUMER_GROUP_MEMBER_METADATA.key.decode(record.key)
        member = None if data is None else _decode_member(member_key.member_id, data)
        return MemberRecord(member_key.group_id, member_key.member_id, member)
    if kind is formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER:
        target_key = formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.key.decode(record.key)
        target = None if data is None else _decode_target(data)
        return TargetRecord(target_key.group_id, target_key.member_id, target)
    if kind is formats.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT:
        current_key = formats.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.key.decode(record.key)
        return CurrentRecord(
            current_key.group_id, current_key.member_id, None if data is None else _decode_current(data)
        )
    return None


def _encode_epoch(epoch: GroupEpoch) -> bytes:
    return formats.CONSUMER_GROUP_METADATA.value.encode(
        formats.ConsumerGroupMetadataValue(epoch=epoch.number, metadata_hash=epoch.topics_hash)
    )


def _decode_epoch(data: bytes) -> GroupEpoch:
    value = formats.CONSUMER_GROUP_METADATA.value.decode(data)
    return GroupEpoch(value.epoch, value.metadata_hash)


def _encode_target_epoch(number: int) -> bytes:
    return formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.value.encode(
        formats.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=number)
    )


def _decode_target_epoch(data: bytes) -> int:
    return formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA.value.decode(data).assignment_epoch


def _encode_member(member: ConsumerMember) -> bytes:
    classic = None
    if member.classic is not None:
        classic = formats.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=tuple(
                formats.ClassicProtocol(name=offered.name, metadata=offered.metadata)
                for offered in member.classic.protocols
            ),
        )
    return formats.CONSUMER_GROUP_MEMBER_METADATA.value.encode(
        formats.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            subscribed_topic_regex=member.pattern,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.assignor,
            classic_member_metadata=classic,
        )
    )


def _decode_member(member_id: str, data: bytes) -> ConsumerMember:
    value = formats.CONSUMER_GROUP_MEMBER_METADATA.value.decode(data)
    classic = None
    if value.classic_member_metadata is not None:
        said = value.classic_member_metadata
        classic = ClassicSide(
            session_timeout_ms=said.session_timeout_ms,
            protocols=tuple(Protocol(offered.name, offered.metadata) for offered in said.supported_protocols),
        )
    return ConsumerMember(
        member_id=member_id,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=value.subscribed_topic_names,
        pattern=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=classic,
    )


def _encode_target(target: Assignment) -> bytes:
    value = formats.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=_topics(target))
    return formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.value.encode(value)


def _decode_target(data: bytes) -> Assignment:
    return _partitions(formats.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER.value.decode(data).topic_partitions)


def _encode_current(current: Current) -> bytes:
    return formats.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.value.encode(
        formats.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state.value,
            assigned_partitions=_topics(current.assigned),
            partitions_pending_revocation=_topics(current.revoking),
        )
    )


def _decode_current(data: bytes) -> Current:
    value = formats.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.value.decode(data)
    if value.state not in MemberState.__members__.values():
        raise ProtocolError(f"a member in state {value.state}")
    return Current(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_partitions(value.assigned_partitions),
        revoking=_partitions(value.partitions_pending_revocation),
    )


def _topics(assignment: Assignment) -> tuple[formats.TopicPartitions, ...]:
    return tuple(
        formats.TopicPartitions(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in topics_of(assignment)
    )


def _partitions(topics: tuple[formats.TopicPartitions, ...]) -> Assignment:
    return flat((found.topic_id, found.partitions) for found in topics)
