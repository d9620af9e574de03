"""Durable changes of groups as records of the internal topic, in Kafka's format.

Tools that read `__consumer_offsets` (lag monitors, consoles) understand it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from penstock.errors import ProtocolError
from penstock.groups.classic.generation import GenerationRecord
from penstock.groups.classic.members import ClassicMember, Protocol
from penstock.groups.commits import Commit, CommitShape
from penstock.groups.consumer import formats as consumer_formats
from penstock.groups.consumer.records import ConsumerRecord
from penstock.groups.offsets import Committed, GroupTombstone, OffsetRecord
from penstock.groups.pause import Pause
from penstock.groups.shard import OneRecord
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
from penstock.records.records import NO_HEADERS, EncodedRecords, record_head
from penstock.replication.state_log import StateRecord

logger = logging.getLogger(__name__)

_OFFSET_VERSION = 3
_EXPIRING_OFFSET_VERSION = 1
"""The only version of a commit that has a time of expiry of its own."""
_TAGGED_GROUP_VERSION = 4
"""The first version of a group that can say what was withheld, and that it was reset."""
_PARTITION = struct.Struct(">i").pack
"""The end of a commit's key."""
_COMMIT_HEAD = struct.Struct(">hqih").pack
_COMMIT_TIME = struct.Struct(">q").pack
"""Around its metadata, a commit: version, offset, leader epoch, length of the metadata; when it was made."""
_VERSION = struct.Struct(">h").pack
_PREFIXES_KEPT = 4096


_PLAIN_COMMIT_BYTES = 24
"""A commit's value without metadata: version, offset, leader epoch, length of the metadata, when it was made."""
_PLAIN_TAIL = struct.Struct(">hq").pack
"""What stands behind the leader epoch in it."""


def shape_of(group_id: str, places: Sequence[TopicPartition]) -> CommitShape:
    """What all commits of these partitions without metadata have in common."""
    return CommitShape(
        group_id,
        places,
        [
            record_head(_key_prefix(group_id, topic) + _PARTITION(partition), _PLAIN_COMMIT_BYTES, number)
            + _VERSION(_OFFSET_VERSION)
            for number, (topic, partition) in enumerate(places)
        ],
    )


def encode_commit(commit: Commit) -> EncodedRecords:
    """A record for each partition of a commit."""
    heads = commit.shape.record_heads
    count = len(heads)
    parts = [_PLAIN_TAIL(0, commit.committed_ms) + NO_HEADERS] * (3 * count)
    parts[0::3] = heads
    parts[1::3] = commit.positions
    return EncodedRecords(parts, count)


def encode(record: OneRecord) -> StateRecord:
    if isinstance(record, OffsetRecord):  # by far the most
        group_id, (topic, partition), committed = record
        key = _key_prefix(group_id, topic) + _PARTITION(partition)
        return StateRecord(key, None if committed is None else _commit(committed))
    if isinstance(record, ConsumerRecord):
        return consumer_formats.encode(record)
    if isinstance(record, GroupTombstone):
        return StateRecord(GROUP_METADATA.key.encode(GroupMetadataKey(group=record.group_id)), None)
    return StateRecord(GROUP_METADATA.key.encode(GroupMetadataKey(group=record.group_id)), _group(record))


def decode(record: StateRecord) -> OneRecord | None:
    """The change in a record; None for an unknown kind, which is left alone."""
    try:
        kind = GROUP_RECORDS.get(int.from_bytes(record.key[:2], "big", signed=True))
        if kind is OFFSET_COMMIT:
            commit_key = OFFSET_COMMIT.key.decode(record.key)
            at = TopicPartition(commit_key.topic, commit_key.partition)
            return OffsetRecord(commit_key.group, at, None if record.value is None else _committed(record.value))
        if kind is GROUP_METADATA:
            group_id = GROUP_METADATA.key.decode(record.key).group
            return GroupTombstone(group_id) if record.value is None else _group_record(group_id, record.value)
        return consumer_formats.decode(kind, record)
    except ProtocolError as error:
        logger.error("ignoring a record of __consumer_offsets that cannot be decoded", extra=fields(error=str(error)))
        return None


def groups_named(keys: Iterable[bytes]) -> set[str]:
    """The groups that keys of records name; unknown keys are left out."""
    records = [decode(StateRecord(key, None)) for key in keys]
    return {record.group_id for record in records if record is not None}


@lru_cache(_PREFIXES_KEPT)
def _key_prefix(group_id: str, topic: str) -> bytes:
    """The key of a commit up to the partition, which most commits share with others."""
    return OFFSET_COMMIT.key.encode(OffsetCommitKey(group=group_id, topic=topic, partition=0))[:-4]


def _commit(committed: Committed) -> bytes:
    offset, leader_epoch, metadata, committed_ms, expire_ms = committed
    if expire_ms < 0:
        raw = metadata.encode()
        return _COMMIT_HEAD(_OFFSET_VERSION, offset, leader_epoch, len(raw)) + raw + _COMMIT_TIME(committed_ms)
    value = OffsetCommitValue(
        offset=offset, metadata=metadata, commit_timestamp=committed_ms, expire_timestamp=expire_ms
    )
    return OFFSET_COMMIT.value.encode(value, _EXPIRING_OFFSET_VERSION)


def _committed(data: bytes) -> Committed:
    value = OFFSET_COMMIT.value.decode(data)
    return Committed(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp)


def _group(record: GenerationRecord) -> bytes:
    protocol = record.protocol or ""
    value = GroupMetadataValue(
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
        withheld_topics=record.withheld.names,
        is_reset=record.is_reset,
    )
    has_tags = record.is_reset or bool(value.withheld_topics)
    return GROUP_METADATA.value.encode(value, _TAGGED_GROUP_VERSION if has_tags else None)


def _group_record(group_id: str, data: bytes) -> GenerationRecord:
    value = GROUP_METADATA.value.decode(data)
    return GenerationRecord(
        group_id=group_id,
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        changed_ms=value.current_state_timestamp,
        withheld=Pause.of_names(value.withheld_topics),
        is_reset=value.is_reset,
        members=tuple(
            ClassicMember(
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
