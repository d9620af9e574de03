"""AddOffsetsToTxn (25): a transaction is going to commit offsets of this group (KIP-98)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message


@message(flexible_from=3)
class AddOffsetsToTxnRequest:
    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    group_id: str


@message(flexible_from=3)
class AddOffsetsToTxnResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
