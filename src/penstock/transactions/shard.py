"""The transactional ids of one partition of the internal topic.

Pure: state changes only in `apply`, with what is in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from penstock.transactions import state_machine
from penstock.transactions.state import Status, TransactionRecord, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRules:
    """Limits and timeouts of transactional ids, the same for all of a broker."""

    max_timeout_ms: int
    id_expiry_ms: int
    max_ids: int
    """Of one shard."""
    max_partitions: int
    """Of one transaction."""


class TransactionShard:
    """States by transactional id."""

    def __init__(self, rules: TransactionRules) -> None:
        self.rules = rules
        self.states: dict[str, TransactionState] = {}
        self._ongoing: set[str] = set()
        self.in_doubt: set[str] = set()
        """Ids of which a later record than the last known one may be lost."""

    def lose(self, names: Collection[str], *, are_all: bool) -> None:
        """Records of these ids are lost at this place of the log, or of any id."""
        self.in_doubt |= self.states.keys() & names if are_all else self.states.keys()

    def apply(self, record: TransactionRecord) -> None:
        """Takes in a record that is in the log."""
        name, state = record.transactional_id, record.state
        self.in_doubt.discard(name)
        if state is None:
            self.states.pop(name, None)
        else:
            self.states[name] = state
        if state is not None and state.status is Status.ONGOING:
            self._ongoing.add(name)
        else:
            self._ongoing.discard(name)

    @property
    def ongoing(self) -> int:
        """How many transactions have begun and are not decided."""
        return len(self._ongoing)

    def oldest_ms(self) -> int | None:
        """When the oldest of them began."""
        return min((self.states[name].started_ms for name in self._ongoing), default=None)

    def loaded(self, now_ms: int) -> None:
        """Everything in the log is taken in. A transaction that began in the future of this coordinator's clock, by
        that of an earlier one, counts from now on: else it would hold up readers until that time has come.
        """
        for name in self._ongoing:
            if self.states[name].started_ms > now_ms:
                self.states[name] = replace(self.states[name], started_ms=now_ms)

    def has_room_for(self, transactional_id: str) -> bool:
        return transactional_id in self.states or len(self.states) < self.rules.max_ids

    def undone(self) -> list[str]:
        """Ids whose transaction is decided and not complete."""
        return [name for name, state in self.states.items() if state.status.is_decided]

    def is_due(self, now_ms: int) -> bool:
        """Whether a transaction has gone on for too long."""
        return any(self.states[name].ends_ms <= now_ms for name in self._ongoing)

    def overdue(self, now_ms: int) -> list[TransactionRecord]:
        """The end of every transaction that has gone on for too long."""
        return [
            TransactionRecord(name, state_machine.fenced(self.states[name], now_ms))
            for name in self._ongoing
            if self.states[name].ends_ms <= now_ms
        ]

    def expired(self, now_ms: int) -> Iterator[TransactionRecord]:
        """The removal of every id that no producer has used for long."""
        for name, state in self.states.items():
            is_idle = state.status is Status.EMPTY or state.status.is_complete
            if is_idle and state.changed_ms + self.rules.id_expiry_ms <= now_ms:
                yield TransactionRecord(name, None)
