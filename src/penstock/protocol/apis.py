"""The APIs that this broker can speak: their keys, the versions advertised, how each is decoded and encoded.

The lowest versions are those of Kafka 4, which are what current clients still send. That includes Produce 0 to 2, which
are only ever answered with an error: librdkafka before 2.11 does not compress for a broker that does not name them
(KAFKA-18659). Produce and Fetch have codecs of their own; every other API is described in `messages`, in a module of
its own that is loaded when the API is first used. Which of these APIs a broker advertises is its own affair:
`advertise` takes the keys that it answers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from penstock.errors import ProtocolError
from penstock.protocol import decoding, encoding, fetch, header, packed_commit, produce
from penstock.protocol.messages.api_versions import ApiVersion
from penstock.protocol.schema import NEVER
from penstock.protocol.steps import Steps

_SIZE = struct.Struct(">i").pack


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table; what is coded by hand brings its own `decode` and has no described classes."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    by_hand: Callable[[int, memoryview, int, int], Any] | None = None

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    @property
    def request(self) -> type:
        return _described_class(self.name, "Request")

    @property
    def response(self) -> type:
        return _described_class(self.name, "Response")


@cache
def _described_class(api_name: str, kind: str) -> type:
    """`JoinGroup`, `Request` -> JoinGroupRequest in messages/join_group.py."""
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()
    found: type = getattr(import_module(f"penstock.protocol.messages.{module}"), api_name + kind)
    return found


def _described(key: int, name: str, versions: tuple[int, int], flexible_from: int) -> Api:
    return Api(key, name, *versions, flexible_from)


PRODUCE = Api(0, "Produce", 0, 12, produce.FLEXIBLE_FROM, produce.decode_request)
FETCH = Api(1, "Fetch", 4, 16, fetch.FLEXIBLE_FROM, fetch.decode_request)
LIST_OFFSETS = _described(2, "ListOffsets", (1, 11), 6)
METADATA = _described(3, "Metadata", (0, 13), 9)
OFFSET_COMMIT = _described(8, "OffsetCommit", (2, 10), 8)
OFFSET_FETCH = _described(9, "OffsetFetch", (1, 10), 6)
FIND_COORDINATOR = _described(10, "FindCoordinator", (0, 6), 3)
JOIN_GROUP = _described(11, "JoinGroup", (0, 9), 6)
HEARTBEAT = _described(12, "Heartbeat", (0, 4), 4)
LEAVE_GROUP = _described(13, "LeaveGroup", (0, 5), 4)
SYNC_GROUP = _described(14, "SyncGroup", (0, 5), 4)
DESCRIBE_GROUPS = _described(15, "DescribeGroups", (0, 6), 5)
LIST_GROUPS = _described(16, "ListGroups", (0, 5), 3)
SASL_HANDSHAKE = _described(17, "SaslHandshake", (0, 1), NEVER)
API_VERSIONS = _described(18, "ApiVersions", (0, 4), 3)
CREATE_TOPICS = _described(19, "CreateTopics", (2, 7), 5)
DELETE_TOPICS = _described(20, "DeleteTopics", (1, 6), 4)
DELETE_RECORDS = _described(21, "DeleteRecords", (0, 2), 2)
INIT_PRODUCER_ID = _described(22, "InitProducerId", (0, 5), 2)
OFFSET_FOR_LEADER_EPOCH = _described(23, "OffsetForLeaderEpoch", (2, 4), 4)
ADD_PARTITIONS_TO_TXN = _described(24, "AddPartitionsToTxn", (0, 5), 3)
ADD_OFFSETS_TO_TXN = _described(25, "AddOffsetsToTxn", (0, 4), 3)
END_TXN = _described(26, "EndTxn", (0, 5), 3)
WRITE_TXN_MARKERS = _described(27, "WriteTxnMarkers", (1, 2), 1)
TXN_OFFSET_COMMIT = _described(28, "TxnOffsetCommit", (0, 5), 3)
DESCRIBE_ACLS = _described(29, "DescribeAcls", (1, 3), 2)
CREATE_ACLS = _described(30, "CreateAcls", (1, 3), 2)
DELETE_ACLS = _described(31, "DeleteAcls", (1, 3), 2)
DESCRIBE_CONFIGS = _described(32, "DescribeConfigs", (1, 4), 4)
ALTER_CONFIGS = _described(33, "AlterConfigs", (0, 2), 2)
DESCRIBE_LOG_DIRS = _described(35, "DescribeLogDirs", (1, 4), 2)
SASL_AUTHENTICATE = _described(36, "SaslAuthenticate", (0, 2), 2)
CREATE_PARTITIONS = _described(37, "CreatePartitions", (0, 3), 2)
DELETE_GROUPS = _described(42, "DeleteGroups", (0, 2), 2)
ELECT_LEADERS = _described(43, "ElectLeaders", (0, 2), 2)
INCREMENTAL_ALTER_CONFIGS = _described(44, "IncrementalAlterConfigs", (0, 1), 1)
ALTER_PARTITION_REASSIGNMENTS = _described(45, "AlterPartitionReassignments", (0, 1), 0)
LIST_PARTITION_REASSIGNMENTS = _described(46, "ListPartitionReassignments", (0, 0), 0)
OFFSET_DELETE = _described(47, "OffsetDelete", (0, 0), NEVER)
DESCRIBE_CLIENT_QUOTAS = _described(48, "DescribeClientQuotas", (0, 1), 1)
ALTER_CLIENT_QUOTAS = _described(49, "AlterClientQuotas", (0, 1), 1)
DESCRIBE_USER_SCRAM_CREDENTIALS = _described(50, "DescribeUserScramCredentials", (0, 0), 0)
ALTER_USER_SCRAM_CREDENTIALS = _described(51, "AlterUserScramCredentials", (0, 0), 0)
UPDATE_FEATURES = _described(57, "UpdateFeatures", (0, 2), 0)
DESCRIBE_CLUSTER = _described(60, "DescribeCluster", (0, 2), 0)
DESCRIBE_PRODUCERS = _described(61, "DescribeProducers", (0, 0), 0)
DESCRIBE_TRANSACTIONS = _described(65, "DescribeTransactions", (0, 0), 0)
LIST_TRANSACTIONS = _described(66, "ListTransactions", (0, 2), 0)
CONSUMER_GROUP_HEARTBEAT = _described(68, "ConsumerGroupHeartbeat", (0, 1), 0)
CONSUMER_GROUP_DESCRIBE = _described(69, "ConsumerGroupDescribe", (0, 1), 0)
LIST_CONFIG_RESOURCES = _described(74, "ListConfigResources", (0, 1), 0)
DESCRIBE_TOPIC_PARTITIONS = _described(75, "DescribeTopicPartitions", (0, 0), 0)

APIS = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        SASL_HANDSHAKE,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        WRITE_TXN_MARKERS,
        TXN_OFFSET_COMMIT,
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        DESCRIBE_LOG_DIRS,
        SASL_AUTHENTICATE,
        CREATE_PARTITIONS,
        DELETE_GROUPS,
        ELECT_LEADERS,
        INCREMENTAL_ALTER_CONFIGS,
        ALTER_PARTITION_REASSIGNMENTS,
        LIST_PARTITION_REASSIGNMENTS,
        OFFSET_DELETE,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        ALTER_USER_SCRAM_CREDENTIALS,
        UPDATE_FEATURES,
        DESCRIBE_CLUSTER,
        DESCRIBE_PRODUCERS,
        DESCRIBE_TRANSACTIONS,
        LIST_TRANSACTIONS,
        CONSUMER_GROUP_HEARTBEAT,
        CONSUMER_GROUP_DESCRIBE,
        LIST_CONFIG_RESOURCES,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}

_FLEXIBLE_FROM = {api.key: api.flexible_from for api in APIS.values()}


def decode_header(frame: bytes | memoryview) -> header.RequestHeader:
    """The header of a request frame, its size prefix already cut off."""
    return header.decode_request_header(frame, _FLEXIBLE_FROM)


def decode_request(
    api: Api, version: int, body: memoryview, position: int = 0, max_entries: int = decoding.NO_LIMIT
) -> Any:
    """The request that starts at `position`; ProtocolError if it has more than `max_entries` entries."""
    if not api.min_version <= version <= api.max_version:
        raise ProtocolError(f"{api.name} v{version} is not supported")
    if api.by_hand is not None:
        return api.by_hand(version, body, position, max_entries)
    if api is OFFSET_COMMIT:
        packed = packed_commit.decode(version, body, position, max_entries)
        if packed is not None:
            return packed
    return decoding.decode(api.request, version, body, position, max_entries)[0]


def decode_request_in_steps(
    api: Api, version: int, body: memoryview, position: int, max_entries: int
) -> Steps[tuple[Any, int]]:
    """The same for a described API, with pauses; the second value is how many entries the request has."""
    return decoding.decode_in_steps(api.request, version, body, position, max_entries)


def encode_response(api: Api, version: int, correlation_id: int, message: object) -> bytes:
    """The whole frame of a response: size, header and body."""
    if api.by_hand is not None or not isinstance(message, api.response):
        raise ValueError(f"{type(message).__name__} does not answer {api.name}")
    parts = [header.encode_response_header(api.key, version >= api.flexible_from, correlation_id)]
    encoding.encode_into(parts, message, version)
    body = b"".join(parts)
    return _SIZE(len(body)) + body


def encode_response_in_steps(api: Api, version: int, correlation_id: int, message: object) -> Steps[bytes]:
    """The same with pauses, for an answer that may be long."""
    parts = [b"", header.encode_response_header(api.key, version >= api.flexible_from, correlation_id)]
    yield from encoding.encode_in_steps(parts, message, version)
    parts[0] = _SIZE(sum(map(len, parts)))
    return b"".join(parts)


def advertise(keys: Iterable[int]) -> tuple[ApiVersion, ...]:
    """The `api_keys` of an ApiVersions response, by key.

    A client that asks ApiVersions in a version unknown here is answered in version 0 with these and the error
    UNSUPPORTED_VERSION, which every client can read.
    """
    return tuple(
        ApiVersion(api_key=key, min_version=APIS[key].min_version, max_version=APIS[key].max_version)
        for key in sorted(keys)
    )
