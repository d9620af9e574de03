"""Transactional ids of a shard that another coordinator, with another clock, has written."""

from __future__ import annotations

from penstock.transactions.shard import TransactionRules, TransactionShard
from penstock.transactions.state import Status, TransactionRecord, TransactionState

NOW = 1_700_000_000_000
HOUR = 3_600_000
RULES = TransactionRules(max_timeout_ms=900_000, id_expiry_ms=HOUR, max_ids=10, max_partitions=10)


def shard_of(started_ms: int, status: Status = Status.ONGOING) -> TransactionShard:
    state = TransactionState(
        producer_id=1, producer_epoch=0, timeout_ms=60_000, changed_ms=started_ms, started_ms=started_ms, status=status
    )
    shard = TransactionShard(RULES)
    shard.apply(TransactionRecord("x", state))
    shard.loaded(NOW)
    return shard


def test_one_that_began_in_the_future_has_its_time_from_now_on() -> None:
    shard = shard_of(NOW + HOUR)
    assert not shard.is_due(NOW + 59_999)
    assert shard.is_due(NOW + 60_000) and len(shard.overdue(NOW + 60_000)) == 1


def test_one_that_began_before_goes_on_as_it_was() -> None:
    shard = shard_of(NOW - 50_000)
    assert not shard.is_due(NOW + 9_999)
    assert shard.is_due(NOW + 10_000)
