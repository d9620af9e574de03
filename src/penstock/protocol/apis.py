"""The APIs that this broker can speak: their keys, the versions advertised, how each is decoded and encoded.

The lowest versions are those of Kafka 4, which are what current clients still send. That includes Produce 0 to 2, which
are only ever answered with an error: librdkafka before 2.11.1 does not compress for a broker that does not name them
(KAFKA-18659). Produce and Fetch have codecs of their own; every other API is described in `messages`, and
`encode_response` encodes its answers. Which of these APIs a broker advertises is its own affair: `advertise` takes the
keys that it answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ProtocolError
from penstock.protocol import decoding, encoding, fetch, header, produce, schema
from penstock.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from penstock.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from penstock.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from penstock.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from penstock.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.protocol.messages.metadata import MetadataRequest, MetadataResponse
from penstock.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_SIZE = struct.Struct(">i").pack


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table; `response` is None where the response is encoded by hand."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    request: type
    response: type | None
    decode: Callable[[int, memoryview, int], Any]

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version


def _described(key: int, name: str, versions: tuple[int, int], request: type, response: type) -> Api:
    def decode(version: int, body: memoryview, position: int) -> Any:
        return decoding.decode(request, version, body, position)[0]

    return Api(key, name, *versions, schema.flexible_from(request), request, response, decode)


PRODUCE = Api(0, "Produce", 0, 11, produce.FLEXIBLE_FROM, produce.ProduceRequest, None, produce.decode_request)
FETCH = Api(1, "Fetch", 4, 16, fetch.FLEXIBLE_FROM, fetch.FetchRequest, None, fetch.decode_request)
LIST_OFFSETS = _described(2, "ListOffsets", (1, 10), ListOffsetsRequest, ListOffsetsResponse)
METADATA = _described(3, "Metadata", (0, 13), MetadataRequest, MetadataResponse)
FIND_COORDINATOR = _described(10, "FindCoordinator", (0, 6), FindCoordinatorRequest, FindCoordinatorResponse)
API_VERSIONS = _described(header.API_VERSIONS_KEY, "ApiVersions", (0, 4), ApiVersionsRequest, ApiVersionsResponse)
CREATE_TOPICS = _described(19, "CreateTopics", (2, 7), CreateTopicsRequest, CreateTopicsResponse)
DELETE_TOPICS = _described(20, "DeleteTopics", (1, 6), DeleteTopicsRequest, DeleteTopicsResponse)
DELETE_RECORDS = _described(21, "DeleteRecords", (0, 2), DeleteRecordsRequest, DeleteRecordsResponse)
INIT_PRODUCER_ID = _described(22, "InitProducerId", (0, 5), InitProducerIdRequest, InitProducerIdResponse)
OFFSET_FOR_LEADER_EPOCH = _described(
    23, "OffsetForLeaderEpoch", (2, 4), OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
)
DESCRIBE_CONFIGS = _described(32, "DescribeConfigs", (1, 4), DescribeConfigsRequest, DescribeConfigsResponse)
ALTER_CONFIGS = _described(33, "AlterConfigs", (0, 2), AlterConfigsRequest, AlterConfigsResponse)
DESCRIBE_LOG_DIRS = _described(35, "DescribeLogDirs", (1, 4), DescribeLogDirsRequest, DescribeLogDirsResponse)
CREATE_PARTITIONS = _described(37, "CreatePartitions", (0, 3), CreatePartitionsRequest, CreatePartitionsResponse)
INCREMENTAL_ALTER_CONFIGS = _described(
    44, "IncrementalAlterConfigs", (0, 1), IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
)
DESCRIBE_CLUSTER = _described(60, "DescribeCluster", (0, 2), DescribeClusterRequest, DescribeClusterResponse)
DESCRIBE_TOPIC_PARTITIONS = _described(
    75, "DescribeTopicPartitions", (0, 0), DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
)

APIS = {
    api.key: api
    for api in (
        PRODUCE,
        FETCH,
        LIST_OFFSETS,
        METADATA,
        FIND_COORDINATOR,
        API_VERSIONS,
        CREATE_TOPICS,
        DELETE_TOPICS,
        DELETE_RECORDS,
        INIT_PRODUCER_ID,
        OFFSET_FOR_LEADER_EPOCH,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        DESCRIBE_LOG_DIRS,
        CREATE_PARTITIONS,
        INCREMENTAL_ALTER_CONFIGS,
        DESCRIBE_CLUSTER,
        DESCRIBE_TOPIC_PARTITIONS,
    )
}

_FLEXIBLE_FROM = {api.key: api.flexible_from for api in APIS.values()}


def find_api(key: int) -> Api:
    api = APIS.get(key)
    if api is None:
        raise ProtocolError(f"unknown API key {key}")
    return api


def decode_header(frame: bytes | memoryview) -> header.RequestHeader:
    """The header of a request frame, its size prefix already cut off."""
    return header.decode_request_header(frame, _FLEXIBLE_FROM)


def decode_request(api: Api, version: int, body: memoryview, position: int = 0) -> Any:
    """The request that starts at `position`, an instance of `api.request`."""
    if not api.min_version <= version <= api.max_version:
        raise ProtocolError(f"{api.name} v{version} is not supported")
    return api.decode(version, body, position)


def encode_response(api: Api, version: int, correlation_id: int, message: object) -> bytes:
    """The whole frame of a response: size, header and body."""
    if api.response is None or not isinstance(message, api.response):
        raise ValueError(f"{type(message).__name__} does not answer {api.name}")
    parts = [header.encode_response_header(api.key, version >= api.flexible_from, correlation_id)]
    encoding.encode_into(parts, message, version)
    body = b"".join(parts)
    return _SIZE(len(body)) + body


def advertise(keys: Iterable[int]) -> tuple[ApiVersion, ...]:
    """The `api_keys` of an ApiVersions response, by key.

    A client that asks ApiVersions in a version unknown here is answered in version 0 with these and the error
    UNSUPPORTED_VERSION, which every client can read.
    """
    return tuple(
        ApiVersion(api_key=key, min_version=APIS[key].min_version, max_version=APIS[key].max_version)
        for key in sorted(keys)
    )
