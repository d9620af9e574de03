"""CreateTopics (19)."""

from __future__ import annotations

from uuid import UUID

from penstock.ids import NO_TOPIC_ID
from penstock.protocol.schema import i8, i16, i32, message, since, struct, tagged


@struct
class CreatableReplicaAssignment:
    partition_index: i32
    broker_ids: tuple[i32, ...]


@struct
class CreatableTopicConfig:
    name: str
    value: str | None


@struct
class CreatableTopic:
    name: str
    num_partitions: i32
    replication_factor: i16
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


@message(flexible_from=5)
class CreateTopicsRequest:
    topics: tuple[CreatableTopic, ...]
    timeout_ms: i32 = 60_000
    validate_only: bool = False


@struct
class CreatableTopicConfigs:
    name: str
    value: str | None
    read_only: bool = False
    config_source: i8 = -1
    is_sensitive: bool = False


@struct
class CreatableTopicResult:
    name: str
    topic_id: UUID = since(7, default=NO_TOPIC_ID)
    error_code: i16 = 0
    error_message: str | None = None
    topic_config_error_code: i16 = tagged(0, since=5, default=0)
    num_partitions: i32 = since(5, default=-1)
    replication_factor: i16 = since(5, default=-1)
    configs: tuple[CreatableTopicConfigs, ...] | None = since(5, default=())


@message(flexible_from=5)
class CreateTopicsResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[CreatableTopicResult, ...]
