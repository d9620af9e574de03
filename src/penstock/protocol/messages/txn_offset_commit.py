"""TxnOffsetCommit (28): offsets that count only once the transaction commits (KIP-98, KIP-447)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since, struct


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: i32
    committed_offset: i64
    committed_leader_epoch: i32 = since(2, default=-1)
    committed_metadata: str | None = None


@struct
class TxnOffsetCommitRequestTopic:
    name: str
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@message(flexible_from=3)
class TxnOffsetCommitRequest:
    transactional_id: str
    group_id: str
    producer_id: i64
    producer_epoch: i16
    generation_id: i32 = since(3, default=-1)
    member_id: str = since(3, default="")
    group_instance_id: str | None = since(3, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: i32
    error_code: i16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@message(flexible_from=3)
class TxnOffsetCommitResponse:
    throttle_time_ms: i32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...]
