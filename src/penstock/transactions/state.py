"""The state of one transactional id: an immutable value, replaced at every change and written as it is.

`docs/internals/transactions.md` draws the states.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock.ids import TopicPartition
from penstock.protocol.messages import transaction_records as numbers

MAX_EPOCH = 32_767
"""Never given to a producer: it is what the last of an id's epochs is fenced with."""
NO_EPOCH = -1
NO_ID = -1


class Status(IntEnum):
    """Kafka's numbers; `shown` are the names that its tools print."""

    EMPTY = numbers.EMPTY
    ONGOING = numbers.ONGOING
    PREPARE_COMMIT = numbers.PREPARE_COMMIT
    PREPARE_ABORT = numbers.PREPARE_ABORT
    COMPLETE_COMMIT = numbers.COMPLETE_COMMIT
    COMPLETE_ABORT = numbers.COMPLETE_ABORT
    DEAD = numbers.DEAD
    PREPARE_EPOCH_FENCE = numbers.PREPARE_EPOCH_FENCE

    @property
    def shown(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_decided(self) -> bool:
        """The outcome stands, and its markers are being written."""
        return self in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """One transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    changed_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    previous_producer_id: int = NO_ID
    """What the id went by before its epochs were used up."""
    next_producer_id: int = NO_ID
    """What it goes by when the transaction that is being ended is complete, if its epochs are used up."""
    version: int = 0
    """The transaction version (KIP-890) that the producer speaks, as far as it is known."""
    last_epoch: int = NO_EPOCH
    """The epoch from which the producer itself came to this one by InitProducerId, or to this producer id; soft, see
    `docs/internals/transactions.md`.
    """

    @property
    def ends_ms(self) -> int:
        """When a transaction that is going on is aborted."""
        return self.started_ms + self.timeout_ms

    @property
    def is_exhausted(self) -> bool:
        """No producer can be given an epoch after this one."""
        return self.producer_epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The state of an id as it is written to the log; None deletes it."""

    transactional_id: str
    state: TransactionState | None
