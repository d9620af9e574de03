"""The state machine of a transactional id: pure decisions, one function per event.

The state, the event and the time go in; a `Decision` comes out. The caller appends the decision's state to the log
before it applies it or answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.errors import Code
from penstock.ids import TopicPartition
from penstock.transactions.state import MAX_EPOCH, NO_EPOCH, NO_ID, Status, TransactionState

BUMPING_VERSION = 2
"""From this transaction version on every transaction ends with the next epoch."""


class Producer(NamedTuple):
    """The producer that a request claims to come from."""

    id: int
    epoch: int


NO_PRODUCER = Producer(NO_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a request, and the state to write first if there is one."""

    code: Code = Code.NONE
    producer: Producer = NO_PRODUCER
    state: TransactionState | None = None
    wants_producer_id: bool = False
    """Nothing is decided: call again with a producer id that was never given out."""


_WANTS_ID = Decision(wants_producer_id=True)
_CONCURRENT = Decision(code=Code.CONCURRENT_TRANSACTIONS)
_FENCED = Decision(code=Code.PRODUCER_FENCED)
_WRONG_STATE = Decision(code=Code.INVALID_TXN_STATE)
_UNKNOWN = Decision(code=Code.INVALID_PRODUCER_ID_MAPPING)


def init(
    state: TransactionState | None, expected: Producer, timeout_ms: int, fresh_id: int | None, now_ms: int
) -> Decision:
    """InitProducerId: a producer starts, or continues after an error as `expected` if it already has an epoch."""
    if state is None:
        if fresh_id is None:
            return _WANTS_ID
        return _begun(
            TransactionState(producer_id=fresh_id, producer_epoch=0, timeout_ms=timeout_ms, changed_ms=now_ms)
        )
    if expected != NO_PRODUCER and expected.id != state.producer_id:
        has_not_heard = expected.id == state.previous_producer_id and expected.epoch == state.last_epoch
        return _answered(state) if has_not_heard else _FENCED
    if expected != NO_PRODUCER and expected.epoch not in (state.producer_epoch, state.last_epoch):
        return _FENCED
    if state.status.is_decided:
        return _CONCURRENT
    if state.status is Status.ONGOING:
        # No producer gets its epoch: the next request gets the one after it.
        return replace(_CONCURRENT, state=fenced(state, now_ms))
    if expected != NO_PRODUCER and expected.epoch == state.last_epoch:
        return _answered(state)  # it has not heard of its new epoch
    begun = replace(
        state,
        status=Status.EMPTY,
        partitions=frozenset(),
        started_ms=-1,
        timeout_ms=timeout_ms,
        changed_ms=now_ms,
        version=0,
        last_epoch=expected.epoch,
    )
    if not state.is_exhausted:
        return _begun(replace(begun, producer_epoch=state.producer_epoch + 1))
    if fresh_id is None:
        return _WANTS_ID
    return _begun(replace(begun, producer_id=fresh_id, producer_epoch=0, previous_producer_id=state.producer_id))


def add_partitions(
    state: TransactionState | None,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    max_partitions: int,
    version: int,
    now_ms: int,
) -> Decision:
    """The producer is about to write to these partitions."""
    refusal = _refusal(state, producer)
    if refusal is not None or state is None:
        return refusal or _UNKNOWN
    added = frozenset(partitions)
    if state.status is Status.ONGOING:
        if added <= state.partitions:
            return Decision()
        added |= state.partitions
    if len(added) > max_partitions:
        return Decision(code=Code.POLICY_VIOLATION)
    started_ms = state.started_ms if state.status is Status.ONGOING else now_ms
    ongoing = replace(
        state,
        status=Status.ONGOING,
        partitions=added,
        started_ms=started_ms,
        changed_ms=now_ms,
        version=max(state.version, version),
        last_epoch=NO_EPOCH,
    )
    return Decision(state=ongoing)


def verify(
    state: TransactionState | None, producer: Producer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Code]:
    """Whether these partitions are part of the ongoing transaction."""
    wanted = list(partitions)
    refusal = _refusal(state, producer)
    if refusal is not None or state is None:
        return dict.fromkeys(wanted, (refusal or _UNKNOWN).code)
    members = state.partitions if state.status is Status.ONGOING else frozenset()
    return {at: Code.NONE if at in members else Code.TRANSACTION_ABORTABLE for at in wanted}


def end(
    state: TransactionState | None,
    producer: Producer,
    version: int,
    fresh_id: int | None,
    now_ms: int,
    *,
    commits: bool,
) -> Decision:
    """EndTxn: the producer commits or aborts."""
    if state is None:
        return _UNKNOWN
    bumps = version >= BUMPING_VERSION
    is_retry = bumps and _is_retry(state, producer)
    if producer.id != state.producer_id and not is_retry:
        return _UNKNOWN
    if producer.epoch != state.producer_epoch and not is_retry:
        return _FENCED
    status = state.status
    if status is Status.ONGOING or (bumps and not is_retry and not commits and not status.is_decided):
        # Without a transaction there is nothing to abort, but a client that asks wants another epoch.
        return _decided(state, version, fresh_id, now_ms, commits=commits)
    if status is Status.EMPTY:
        return _WRONG_STATE
    if status.is_decided and bumps and not is_retry:
        # The producer has its next epoch already, and with that this is about its next transaction.
        return _CONCURRENT
    if commits != (status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)):
        was_aborted_for_it = is_retry and commits
        return Decision(code=Code.TRANSACTION_ABORTABLE) if was_aborted_for_it else _WRONG_STATE
    if status.is_decided:
        return _CONCURRENT
    if bumps and not is_retry:
        return _WRONG_STATE
    if state.producer_epoch == MAX_EPOCH:
        return _FENCED  # its last epoch was fenced: only InitProducerId finds it another id
    return _answered(state)


def fenced(state: TransactionState, now_ms: int) -> TransactionState:
    """The coordinator aborts a transaction itself and fences its producer."""
    return replace(
        state,
        status=Status.PREPARE_ABORT,
        producer_epoch=min(state.producer_epoch + 1, MAX_EPOCH),
        changed_ms=now_ms,
        last_epoch=NO_EPOCH,
    )


def after_loss(state: TransactionState, fresh_id: int, now_ms: int) -> TransactionState | None:
    """What becomes of an id when records that were written after this state may be lost: a new state, or None if the id
    is forgotten. Whatever was lost, the next producer of the id gets another producer id, so that no two producers have
    the same epoch, and a producer that still uses the old one is refused.

    - A transaction that was going on, or being aborted, is aborted, in an epoch above all that can have been lost.
    - One that was being committed is committed if its markers cannot end a later transaction (from KIP-890 on each has
      an epoch of its own). Otherwise the id is forgotten: it is not known which transaction is open where.
    """
    if state.status in (Status.ONGOING, Status.PREPARE_ABORT):
        fenced_for_good = replace(state, producer_epoch=MAX_EPOCH, next_producer_id=NO_ID)
        return fenced(fenced_for_good, now_ms)
    if state.status is Status.PREPARE_COMMIT and state.version >= BUMPING_VERSION:
        return replace(state, next_producer_id=fresh_id, changed_ms=now_ms, last_epoch=NO_EPOCH)
    return None


def completed(state: TransactionState, now_ms: int) -> TransactionState:
    """All markers of a decided transaction are written."""
    is_commit = state.status is Status.PREPARE_COMMIT
    complete = replace(
        state,
        status=Status.COMPLETE_COMMIT if is_commit else Status.COMPLETE_ABORT,
        partitions=frozenset(),
        changed_ms=now_ms,
    )
    if state.next_producer_id == NO_ID:
        return complete
    return replace(
        complete,
        producer_id=state.next_producer_id,
        producer_epoch=0,
        previous_producer_id=state.producer_id,
        next_producer_id=NO_ID,
        last_epoch=MAX_EPOCH - 1,
    )


def _decided(state: TransactionState, version: int, fresh_id: int | None, now_ms: int, *, commits: bool) -> Decision:
    status = Status.PREPARE_COMMIT if commits else Status.PREPARE_ABORT
    partitions = state.partitions if state.status is Status.ONGOING else frozenset()
    decided = replace(
        state, status=status, partitions=partitions, changed_ms=now_ms, version=version, last_epoch=NO_EPOCH
    )
    if version < BUMPING_VERSION:
        return Decision(state=decided, producer=Producer(state.producer_id, state.producer_epoch))
    decided = replace(decided, producer_epoch=state.producer_epoch + 1)
    if not state.is_exhausted:
        return Decision(state=decided, producer=Producer(decided.producer_id, decided.producer_epoch))
    if fresh_id is None:
        return _WANTS_ID
    return Decision(state=replace(decided, next_producer_id=fresh_id), producer=Producer(fresh_id, 0))


def _is_retry(state: TransactionState, producer: Producer) -> bool:
    """The request was carried out before: the producer is still where it was then."""
    if state.status in (Status.EMPTY, Status.ONGOING):
        return False
    if producer.id == state.producer_id:
        return producer.epoch == state.producer_epoch - 1
    return producer.id == state.previous_producer_id and producer.epoch == state.last_epoch and state.status.is_complete


def _refusal(state: TransactionState | None, producer: Producer) -> Decision | None:
    if state is None or state.producer_id != producer.id:
        return _UNKNOWN
    if state.producer_epoch != producer.epoch:
        return _FENCED
    return _CONCURRENT if state.status.is_decided else None


def _begun(state: TransactionState) -> Decision:
    return Decision(state=state, producer=Producer(state.producer_id, state.producer_epoch))


def _answered(state: TransactionState) -> Decision:
    return Decision(producer=Producer(state.producer_id, state.producer_epoch))
