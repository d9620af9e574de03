"""DescribeTopicPartitions (75): topics page by page, with a cursor to go on from (KIP-966)."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from penstock.protocol.schema import i16, i32, message, struct


@struct
class TopicRequest:
    name: str


@struct
class Cursor:
    """The first partition that the next page holds."""

    topic_name: str
    partition_index: i32


@message(flexible_from=0)
class DescribeTopicPartitionsRequest:
    topics: tuple[TopicRequest, ...]
    response_partition_limit: i32 = 2000
    cursor: Cursor | None = None


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: i16 = 0
    partition_index: i32
    leader_id: i32
    leader_epoch: i32 = -1
    replica_nodes: tuple[i32, ...] = ()
    isr_nodes: tuple[i32, ...] = ()
    eligible_leader_replicas: tuple[i32, ...] | None = None
    last_known_elr: tuple[i32, ...] | None = None
    offline_replicas: tuple[i32, ...] = ()


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: i16 = 0
    name: str | None
    topic_id: UUID = NO_TOPIC_ID
    is_internal: bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: i32 = OPERATIONS_NOT_ASKED


@message(flexible_from=0)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = None
