"""ConsumerGroupHeartbeat (68): joins, keeps up with and leaves a group whose broker assigns (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from penstock.protocol.schema import i16, i32, message, since, struct

# As a member epoch: the member joins, leaves for good, or leaves as a static member that will be back.
JOIN = 0
LEAVE = -1
LEAVE_STATIC = -2


@struct
class TopicPartitions:
    topic_id: UUID
    partitions: tuple[i32, ...]


@message(flexible_from=0)
class ConsumerGroupHeartbeatRequest:
    """Null, or a timeout of -1, says that the field has not changed since the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: i32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: i32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = since(1, default=None)
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@struct
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...]


@message(flexible_from=0)
class ConsumerGroupHeartbeatResponse:
    """A null assignment says that it has not changed."""

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: i32 = 0
    heartbeat_interval_ms: i32 = 0
    assignment: Assignment | None = None
