"""InitProducerId (22): the id that a producer is known by (KIP-98, KIP-360)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since


@message(flexible_from=2)
class InitProducerIdRequest:
    """A null transactional id asks for idempotence alone."""

    transactional_id: str | None = None
    transaction_timeout_ms: i32
    producer_id: i64 = since(3, default=-1)
    producer_epoch: i16 = since(3, default=-1)


@message(flexible_from=2)
class InitProducerIdResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = -1
    producer_epoch: i16 = 0
