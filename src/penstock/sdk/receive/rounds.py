"""Exactly once: messages are handled in rounds, and each round ends in one transaction.

A round is what was received while the one before it was at work. Its messages are handled `concurrency` at a time; what
handlers send is kept. Once all are settled, one transaction has everything: what the acknowledged ones have sent, the
others as retries and dead letters, and the offsets of all. If it does not commit, everything comes again from what is
committed, and nothing of it was seen.

A transaction begins when its round is handled, so it is short, however long handlers take.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.sdk.errors import TransactionError
from penstock.sdk.message import Verdict
from penstock.sdk.ports import Inbox, Outgoing
from penstock.sdk.receive.endings import outgoing_of, tell, tell_handled
from penstock.sdk.receive.engine import Engine
from penstock.sdk.receive.forwarding import Dead, Done, Fate, Layout
from penstock.sdk.receive.handing import Entry, Handout, Tenure

log = logging.getLogger(__name__)

_AGAIN_MS = 500
"""After a transaction that was not committed: what was in its way is likely still there."""


class RefusedError(TransactionError):
    """A broker takes one of the messages in no case; the transaction was aborted."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class Transactor(Protocol):
    """Commits transactions, one at a time; blocks."""

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        """All or nothing. RefusedError, and TransactionError, after which it may have been committed all the same: but
        nothing about it changes any more.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Outcome:
    handout: Handout
    fate: Fate
    outgoing: tuple[Outgoing, ...]


class Rounds:
    """An ending. `wants_rewind` asks the polling thread to go back."""

    is_transactional = True
    outlives_tenure = False
    needs_polling = False

    def __init__(self, engine: Engine, layout: Layout, inbox: Inbox, transactor: Transactor) -> None:
        self._engine = engine
        self._layout = layout
        self._inbox = inbox
        self._transactor = transactor
        self._waiting: deque[Entry] = deque()
        self._round: dict[Entry, _Outcome | None] = {}
        self._is_committing = False
        self.wants_rewind = False

    def arrived(self, entries: Sequence[Entry]) -> None:
        with self._engine.changed:
            self._waiting.extend(entries)
        self._begin()

    def end(self, handout: Handout, verdict: Verdict, fate: Fate) -> None:
        with self._engine.changed:
            if handout.entry not in self._round:
                return
            self._round[handout.entry] = self._outcome(handout, fate)
        self._commit_if_handled()

    def forget(self, tenures: Set[Tenure], are_lost: bool) -> None:
        for entry in [entry for entry in self._waiting if entry.tenure in tenures]:
            self._waiting.remove(entry)
            self._engine.dropped(entry)
        if self._is_committing:
            # The group's generation decides whether it still counts.
            return
        # Messages are handed out as they came: what of a partition is out lies before what is not.
        for entry in [entry for entry in self._round if entry.tenure in tenures and (are_lost or not entry.is_out)]:
            del self._round[entry]
        self._commit_if_handled()
        self._begin()

    def rewound(self) -> None:
        """Everything that comes from now on comes from what is committed."""
        with self._engine.changed:
            self.wants_rewind = False
            self._round.clear()

    def _begin(self) -> None:
        with self._engine.changed:
            if self._round or self._is_committing or self.wants_rewind:
                return
            entries = list(self._waiting)
            self._waiting.clear()
            self._round = dict.fromkeys(entries)
        if entries:
            self._engine.queue(entries)

    def _commit_if_handled(self) -> None:
        with self._engine.changed:
            if self._is_committing or self.wants_rewind or not self._round or None in self._round.values():
                return
            self._is_committing = True
        self._engine.runner.background(self._commit)

    def _outcome(self, handout: Handout, fate: Fate) -> _Outcome:
        assert handout.sends is not None
        sends = handout.sends.close()
        if isinstance(fate, Done):
            return _Outcome(handout, fate, sends)
        return _Outcome(handout, fate, (outgoing_of(handout.message, self._layout, fate),))

    def _commit(self) -> None:
        """Blocks, beside the polling thread."""
        try:
            while not self._try_to_commit():
                pass
        except Exception as error:
            log.warning(
                "a transaction was not committed; its messages come again",
                extra=fields(group=self._engine.plan.group, error=error),
            )
            self._engine.later(_AGAIN_MS, self._give_up)

    def _try_to_commit(self) -> bool:
        """False if it was aborted because of one message, which is dealt with."""
        with self._engine.changed:
            outcomes = [outcome for outcome in self._round.values() if outcome is not None]
            positions: dict[TopicPartition, int] = {}
            for entry in self._round:
                place = entry.tenure.place
                positions[place] = max(entry.offset + 1, positions.get(place, 0))
            group = self._inbox.group_metadata()
        senders = [outcome for outcome in outcomes for _ in outcome.outgoing]
        try:
            self._transactor.commit([each for outcome in outcomes for each in outcome.outgoing], positions, group)
        except RefusedError as error:
            self._blame(senders[error.index], error)
            return False
        self._committed(outcomes)
        return True

    def _give_up(self) -> None:
        with self._engine.changed:
            self._is_committing = False
            self.wants_rewind = True

    def _blame(self, outcome: _Outcome, error: RefusedError) -> None:
        """The message whose handler has sent what no broker takes is a dead letter, and the others are as they were."""
        message = outcome.handout.message
        if isinstance(outcome.fate, Dead):
            raise TransactionError(f"a dead letter was refused: {error}") from error
        fate = Dead(message.attempt, f"SendError: {error}")
        with self._engine.changed:
            letter = outgoing_of(message, self._layout, fate)
            self._round[outcome.handout.entry] = _Outcome(outcome.handout, fate, (letter,))

    def _committed(self, outcomes: Sequence[_Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome.fate, Done):
                tell_handled(self._engine, outcome.handout)
            else:
                tell(self._engine, outcome.handout.message, outcome.fate)
            self._engine.settled(outcome.handout.entry)
        with self._engine.changed:
            self._round.clear()
            self._is_committing = False
        self._begin()
