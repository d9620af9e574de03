"""Transactional ids of which a later record than the last known one may be lost."""

from __future__ import annotations

import pytest

from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.transactions import state_machine
from penstock.transactions.shard import TransactionRules, TransactionShard
from penstock.transactions.state import MAX_EPOCH, NO_ID, Status, TransactionRecord, TransactionState
from penstock.transactions.state_machine import NO_PRODUCER, Producer

RULES = TransactionRules(max_timeout_ms=60_000, id_expiry_ms=50_000, max_ids=10, max_partitions=3)
AT = TopicPartition("orders", 0)
FRESH, NOW_MS = 900, 5_000
OLD, NEW = 0, 2


def state(status: Status, version: int = NEW) -> TransactionState:
    partitions = frozenset() if status is Status.EMPTY or status.is_complete else frozenset({AT})
    return TransactionState(
        producer_id=7,
        producer_epoch=3,
        timeout_ms=1_000,
        changed_ms=1,
        status=status,
        partitions=partitions,
        version=version,
    )


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("status", [Status.ONGOING, Status.PREPARE_ABORT])
def test_what_was_not_committed_is_aborted_above_every_epoch_that_can_be_lost(status: Status, version: int) -> None:
    after = state_machine.after_loss(state(status, version), NO_ID, NOW_MS)
    assert after is not None
    assert (after.status, after.producer_epoch, after.partitions) == (Status.PREPARE_ABORT, MAX_EPOCH, frozenset({AT}))
    done = state_machine.completed(after, NOW_MS)
    begun = state_machine.init(done, NO_PRODUCER, 1_000, FRESH, NOW_MS)
    assert begun.producer == Producer(FRESH, 0)
    for epoch in range(3, 7):
        assert state_machine.end(done, Producer(7, epoch), version, FRESH, NOW_MS, commits=True).code is not Code.NONE


def test_a_commit_that_was_decided_is_completed_where_it_can_commit_nothing_else() -> None:
    before = state(Status.PREPARE_COMMIT, NEW)
    after = state_machine.after_loss(before, FRESH, NOW_MS)
    assert after is not None
    assert (after.status, after.producer_epoch) == (Status.PREPARE_COMMIT, before.producer_epoch), "its own epoch"
    done = state_machine.completed(after, NOW_MS)
    assert (done.producer_id, done.producer_epoch) == (FRESH, 0)


def test_a_commit_of_an_older_producer_is_not_repeated() -> None:
    assert state_machine.after_loss(state(Status.PREPARE_COMMIT, OLD), FRESH, NOW_MS) is None


@pytest.mark.parametrize("status", [Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT])
def test_an_id_without_a_transaction_is_forgotten(status: Status) -> None:
    assert state_machine.after_loss(state(status), FRESH, NOW_MS) is None


def loaded(*names: str) -> TransactionShard:
    shard = TransactionShard(RULES)
    for name in names:
        shard.apply(TransactionRecord(name, state(Status.EMPTY)))
    return shard


def test_only_who_is_named_is_in_doubt_if_all_names_are_known() -> None:
    shard = loaded("a", "b")
    shard.lose({"b", "new"}, are_all=True)
    assert shard.in_doubt == {"b"}


def test_everybody_before_the_damage_is_in_doubt_if_names_may_be_missing() -> None:
    shard = loaded("a", "b")
    shard.lose({"b"}, are_all=False)
    shard.apply(TransactionRecord("c", state(Status.EMPTY)))
    assert shard.in_doubt == {"a", "b"}


def test_a_later_record_ends_the_doubt() -> None:
    shard = loaded("a", "b")
    shard.lose({"a", "b"}, are_all=True)
    shard.apply(TransactionRecord("a", state(Status.ONGOING)))
    shard.apply(TransactionRecord("b", None))
    assert not shard.in_doubt
