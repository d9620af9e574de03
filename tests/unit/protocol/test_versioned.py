"""Records of the internal topics and the consumers' own messages: behind a version, both ways, and byte by byte."""

from __future__ import annotations

import importlib
import struct
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.messages import consumer_protocol, group_records, transaction_records
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.protocol.messages.group_records import (
    GROUP_RECORDS,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicPartitions,
)
from penstock.protocol.messages.transaction_records import (
    ControlRecordKey,
    EndTxnMarker,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from penstock.protocol.schema import Array, Blob, Column, Fixed, Kind, Struct, Text, columns
from penstock.protocol.versioned import Versioned, peek_version
from unit.protocol.kio_oracle import kio_read, kio_write, plain_values, to_ours

_settings = settings(max_examples=12, derandomize=True, database=None, deadline=None)

_LAYOUTS = {
    layout.cls.__name__: layout
    for layout in (
        *(half for record in GROUP_RECORDS.values() for half in (record.key, record.value)),
        transaction_records.TRANSACTION_LOG_KEY,
        transaction_records.TRANSACTION_LOG_VALUE,
        transaction_records.CONTROL_RECORD_KEY,
        transaction_records.END_TXN_MARKER,
        consumer_protocol.SUBSCRIPTION,
        consumer_protocol.ASSIGNMENT,
    )
}

_LAYOUT_VERSIONS = [
    pytest.param(layout, version, id=f"{name}-v{version}")
    for name, layout in _LAYOUTS.items()
    for version in range(layout.oldest, layout.newest + 1)
]


def _messages(cls: type, version: int) -> st.SearchStrategy[Any]:
    """Messages with any value in the fields of `version`, and the defaults in those it lacks."""
    return st.builds(cls, **{column.name: _column_values(column, version) for column in columns(cls, version)})


def _column_values(column: Column, version: int) -> st.SearchStrategy[Any]:
    values = _values(column.kind, version)
    return st.none() | values if column.nullable else values


def _values(kind: Kind, version: int) -> st.SearchStrategy[Any]:
    match kind:
        case Fixed(code="16s"):
            return st.uuids()
        case Fixed(code="?"):
            return st.booleans()
        case Fixed(size=size):
            return st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1)
        case Text():
            return st.text(max_size=5) | st.just("x" * 200)
        case Blob():
            return st.binary(max_size=5) | st.just(b"x" * 200)
        case Struct(cls=cls):
            return _messages(cls, version)
        case Array(item=item):
            return st.lists(_values(item, version), max_size=3).map(tuple)


@pytest.mark.parametrize(("layout", "version"), _LAYOUT_VERSIONS)
@_settings
@given(data=st.data())
def test_every_layout_survives_every_version(layout: Versioned[Any], version: int, data: st.DataObject) -> None:
    message = data.draw(_messages(layout.cls, version))

    written = layout.encode(message, version)

    assert peek_version(written) == version
    assert layout.decode(written) == message
    assert layout.decode(memoryview(written)) == message


@pytest.mark.parametrize(("layout", "version"), _LAYOUT_VERSIONS)
@_settings
@given(data=st.data())
def test_a_layout_cut_short_is_refused(layout: Versioned[Any], version: int, data: st.DataObject) -> None:
    written = layout.encode(data.draw(_messages(layout.cls, version)), version)

    with pytest.raises(ProtocolError):
        layout.decode(written[: data.draw(st.integers(0, len(written) - 1))])


_WITH_ORACLE = [
    pytest.param(_LAYOUTS[name], folder, their_name, version, id=f"{name}-v{version}")
    for name, folder, their_name in (
        ("ConsumerProtocolSubscription", "consumer_protocol_subscription", "ConsumerProtocolSubscription"),
        ("ConsumerProtocolAssignment", "consumer_protocol_assignment", "ConsumerProtocolAssignment"),
        ("EndTxnMarker", "end_txn_marker", "EndTxnMarker"),
    )
    for version in range(_LAYOUTS[name].newest + 1)
]


@pytest.mark.parametrize(("layout", "folder", "their_name", "version"), _WITH_ORACLE)
@_settings
@given(data=st.data())
def test_kio_agrees_where_it_knows_the_layout(
    layout: Versioned[Any], folder: str, their_name: str, version: int, data: st.DataObject
) -> None:
    theirs = getattr(importlib.import_module(f"kio.schema.{folder}.v{version}"), their_name)
    plain = data.draw(plain_values(theirs))
    ours = to_ours(layout.cls, plain)
    written = struct.pack(">h", version) + kio_write(theirs, plain)

    assert layout.encode(ours, version) == written
    assert kio_read(theirs, written[2:]) == plain
    assert layout.decode(written) == ours


_ID = UUID(int=7)

# Written out by hand from Kafka's published layouts.
_BYTES = [
    (
        group_records.OFFSET_COMMIT.key,
        OffsetCommitKey(group="g", topic="t", partition=3),
        b"\0\x01\0\x01g\0\x01t\0\0\0\x03",
    ),
    (
        group_records.OFFSET_COMMIT.value,
        OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9),
        b"\0\x03" + struct.pack(">qi", 5, 2) + b"\0\x01m" + struct.pack(">q", 9),
    ),
    (
        group_records.GROUP_METADATA.value,
        GroupMetadataValue(
            protocol_type="consumer",
            generation=4,
            protocol="range",
            leader=None,
            current_state_timestamp=9,
            members=(
                MemberMetadata(
                    member_id="m",
                    group_instance_id=None,
                    client_id="c",
                    client_host="h",
                    rebalance_timeout=7,
                    session_timeout=8,
                    subscription=b"s",
                    assignment=b"",
                ),
            ),
        ),
        b"\0\x03"
        b"\0\x08consumer"
        b"\0\0\0\x04"
        b"\0\x05range"
        b"\xff\xff"
        b"\0\0\0\0\0\0\0\x09"
        b"\0\0\0\x01"
        b"\0\x01m"
        b"\xff\xff"
        b"\0\x01c"
        b"\0\x01h"
        b"\0\0\0\x07"
        b"\0\0\0\x08"
        b"\0\0\0\x01s"
        b"\0\0\0\0",
    ),
    (
        group_records.CONSUMER_GROUP_METADATA.value,
        ConsumerGroupMetadataValue(epoch=6, metadata_hash=1),
        b"\0\0\0\0\0\x06\x01\0\x08\0\0\0\0\0\0\0\x01",
    ),
    (
        # The tag is a struct that may be null: its size counts the marker before it.
        group_records.CONSUMER_GROUP_MEMBER_METADATA.value,
        ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="h",
            subscribed_topic_names=("t",),
            rebalance_timeout_ms=1,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=2, supported_protocols=(ClassicProtocol(name="p", metadata=b"b"),)
            ),
        ),
        b"\0\0\0\0\x02c\x02h\x02\x02t\0\0\0\0\x01\0\x01\0\x0c\x01\0\0\0\x02\x02\x02p\x02b\0\0",
    ),
    (
        group_records.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT.value,
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=group_records.UNREVOKED_PARTITIONS,
            assigned_partitions=(TopicPartitions(topic_id=_ID, partitions=(0, 1)),),
        ),
        b"\0\0\0\0\0\x03\0\0\0\x02\x01\x02" + _ID.bytes + b"\x03\0\0\0\0\0\0\0\x01\0\x01\0",
    ),
    (
        transaction_records.TRANSACTION_LOG_KEY,
        TransactionLogKey(transactional_id="x"),
        b"\0\0\0\x01x",
    ),
    (
        transaction_records.TRANSACTION_LOG_VALUE,
        TransactionLogValue(
            producer_id=1,
            next_producer_id=2,
            producer_epoch=3,
            transaction_timeout_ms=4,
            transaction_status=transaction_records.ONGOING,
            transaction_partitions=(PartitionsSchema(topic="t", partition_ids=(5,)),),
            transaction_last_update_timestamp_ms=6,
            transaction_start_timestamp_ms=7,
            client_transaction_version=2,
        ),
        b"\0\x01" + struct.pack(">qhib", 1, 3, 4, 1) + b"\x02\x02t\x02\0\0\0\x05\0" + struct.pack(">qq", 6, 7) + b"\x02"
        b"\x01\x08\0\0\0\0\0\0\0\x02"
        b"\x02\x02\0\x02",
    ),
    (
        transaction_records.CONTROL_RECORD_KEY,
        ControlRecordKey(type=transaction_records.COMMIT),
        b"\0\0\0\x01",
    ),
    (
        transaction_records.END_TXN_MARKER,
        EndTxnMarker(coordinator_epoch=9),
        b"\0\0\0\0\0\x09",
    ),
]


@pytest.mark.parametrize(("layout", "message", "written"), _BYTES, ids=lambda value: type(value).__name__)
def test_the_bytes_of_a_record_are_kafkas(layout: Versioned[Any], message: Any, written: bytes) -> None:
    assert layout.encode(message) == written
    assert layout.decode(written) == message


def test_the_key_of_a_group_record_says_what_the_record_is() -> None:
    assert sorted(GROUP_RECORDS) == list(range(9))
    for version, record in GROUP_RECORDS.items():
        key = record.key.cls(
            **{field.name: 1 if field.name == "partition" else "a" for field in fields(record.key.cls)}
        )
        assert GROUP_RECORDS[peek_version(record.key.encode(key, version))] is record


def test_an_offset_that_expires_is_written_in_version_1() -> None:
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=2, expire_timestamp=3)
    layout = group_records.OFFSET_COMMIT.value

    assert layout.decode(layout.encode(value, 1)) == value
    assert layout.decode(layout.encode(value)).expire_timestamp == -1


def test_a_tagged_field_of_a_newer_kafka_is_skipped() -> None:
    layout = group_records.CONSUMER_GROUP_METADATA.value

    decoded = layout.decode(b"\0\0\0\0\0\x06\x01\x01\x08\0\0\0\0\0\0\0\x01")

    assert decoded == ConsumerGroupMetadataValue(epoch=6)


@pytest.mark.parametrize("version", [-1, 5])
def test_a_record_of_an_unknown_version_is_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match="OffsetCommitValue"):
        group_records.OFFSET_COMMIT.value.decode(struct.pack(">h", version) + b"\0" * 40)


def test_what_newer_consumers_say_is_read_as_far_as_it_is_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=("t",), user_data=b"u", generation_id=4, rack_id="r")
    assignment = ConsumerProtocolAssignment(assigned_partitions=())

    newer = b"\0\x09" + consumer_protocol.SUBSCRIPTION.encode(subscription)[2:] + b"a field of version 9"
    assert consumer_protocol.SUBSCRIPTION.decode(newer) == subscription
    newer = b"\0\x09" + consumer_protocol.ASSIGNMENT.encode(assignment)[2:]
    assert consumer_protocol.ASSIGNMENT.decode(newer) == assignment
    with pytest.raises(ProtocolError):
        consumer_protocol.SUBSCRIPTION.decode(b"\xff\xff" + newer[2:])


def test_bytes_that_do_not_even_hold_a_version_are_refused() -> None:
    for data in (b"", b"\0"):
        with pytest.raises(ProtocolError):
            peek_version(data)
