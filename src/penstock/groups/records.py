"""The durable changes of groups as records of the internal topic, in Kafka's own format.

Kafka's format, so that tools which read `__consumer_offsets` (lag monitors, consoles) understand it.
"""

from __future__ import annotations

import logging

from penstock.errors import ProtocolError
from penstock.groups.generation import GroupRecord
from penstock.groups.members import Member, Protocol
from penstock.groups.offsets import Committed, GroupTombstone, OffsetRecord
from penstock.groups.shard import Record
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.protocol.messages.group_records import (
    GROUP_METADATA,
    GROUP_RECORDS,
    OFFSET_COMMIT,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from penstock.replication.statelog import StateRecord

logger = logging.getLogger(__name__)

_EXPIRING_OFFSET_VERSION = 1
"""The only version of a commit that has a time of expiry of its own."""


def encode(record: Record) -> StateRecord:
    if isinstance(record, GroupTombstone):
        return StateRecord(GROUP_METADATA.key.encode(GroupMetadataKey(group=record.group_id)), None)
    if isinstance(record, OffsetRecord):
        key = OFFSET_COMMIT.key.encode(
            OffsetCommitKey(group=record.group_id, topic=record.at.topic, partition=record.at.partition)
        )
        return StateRecord(key, None if record.committed is None else _commit(record.committed))
    return StateRecord(GROUP_METADATA.key.encode(GroupMetadataKey(group=record.group_id)), _group(record))


def decode(record: StateRecord) -> Record | None:
    """The change behind a record; None for a kind that is not known here, which is left alone."""
    try:
        kind = GROUP_RECORDS.get(int.from_bytes(record.key[:2], "big", signed=True))
        if kind is OFFSET_COMMIT:
            commit_key = OFFSET_COMMIT.key.decode(record.key)
            at = TopicPartition(commit_key.topic, commit_key.partition)
            return OffsetRecord(commit_key.group, at, None if record.value is None else _committed(record.value))
        if kind is GROUP_METADATA:
            group_id = GROUP_METADATA.key.decode(record.key).group
            return GroupTombstone(group_id) if record.value is None else _group_record(group_id, record.value)
    except ProtocolError as error:
        logger.error("record of the internal topic not understood", extra=fields(error=str(error)))
        return None
    return None


def _commit(committed: Committed) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expire_ms,
    )
    if committed.expire_ms >= 0:
        return OFFSET_COMMIT.value.encode(value, _EXPIRING_OFFSET_VERSION)
    return OFFSET_COMMIT.value.encode(value)


def _committed(data: bytes) -> Committed:
    value = OFFSET_COMMIT.value.decode(data)
    return Committed(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp)


def _group(record: GroupRecord) -> bytes:
    protocol = record.protocol or ""
    return GROUP_METADATA.value.encode(
        GroupMetadataValue(
            protocol_type=record.protocol_type,
            generation=record.generation,
            protocol=record.protocol,
            leader=record.leader,
            current_state_timestamp=record.changed_ms,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_of(protocol),
                    assignment=member.assignment,
                )
                for member in record.members
            ),
        )
    )


def _group_record(group_id: str, data: bytes) -> GroupRecord:
    value = GROUP_METADATA.value.decode(data)
    return GroupRecord(
        group_id=group_id,
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        changed_ms=value.current_state_timestamp,
        members=tuple(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout,
                rebalance_timeout_ms=member.rebalance_timeout,
                protocols=(Protocol(value.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
            for member in value.members
        ),
    )
