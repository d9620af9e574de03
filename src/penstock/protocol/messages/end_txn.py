"""EndTxn (26): commits or aborts; from version 5 on the answer carries the next epoch (KIP-98, KIP-890)."""

from __future__ import annotations

from penstock.protocol.schema import i16, i32, i64, message, since


@message(flexible_from=3)
class EndTxnRequest:
    transactional_id: str
    producer_id: i64
    producer_epoch: i16
    committed: bool


@message(flexible_from=3)
class EndTxnResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    producer_id: i64 = since(5, default=-1)
    producer_epoch: i16 = since(5, default=-1)
