"""Metadata (3): the brokers, the topics and who leads which partition."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.schema import i16, i32, message, nullable_since, since, struct

# Says that the client did not ask which operations it may do.
OPERATIONS_NOT_ASKED = -(2**31)


@struct
class MetadataRequestTopic:
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    name: str | None = nullable_since(10, default=None)


@message(flexible_from=9)
class MetadataRequest:
    """Null topics ask for all; version 0, which has no null, asks for all with an empty array."""

    topics: tuple[MetadataRequestTopic, ...] | None = nullable_since(1)
    allow_auto_topic_creation: bool = since(4, default=True)
    include_cluster_authorized_operations: bool = since(8, until=10, default=False)
    include_topic_authorized_operations: bool = since(8, default=False)


@struct
class MetadataResponseBroker:
    node_id: i32
    host: str
    port: i32
    rack: str | None = since(1, default=None)


@struct
class MetadataResponsePartition:
    error_code: i16 = 0
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = since(7, default=-1)
    replica_nodes: tuple[i32, ...] = ()
    isr_nodes: tuple[i32, ...] = ()
    offline_replicas: tuple[i32, ...] = since(5, default=())


@struct
class MetadataResponseTopic:
    error_code: i16 = 0
    name: str | None = nullable_since(12)
    topic_id: UUID = since(10, default=NO_TOPIC_ID)
    is_internal: bool = since(1, default=False)
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: i32 = since(8, default=OPERATIONS_NOT_ASKED)


@message(flexible_from=9)
class MetadataResponse:
    throttle_time_ms: i32 = since(3, default=0)
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None = since(2, default=None)
    controller_id: i32 = since(1, default=-1)
    topics: tuple[MetadataResponseTopic, ...]
    cluster_authorized_operations: i32 = since(8, until=10, default=OPERATIONS_NOT_ASKED)
    error_code: i16 = since(13, default=0)
