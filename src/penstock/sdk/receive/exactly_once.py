"""Exactly-once settlement: messages are handled in groups, and each group is committed in one transaction.

A group consists of the messages that arrived while the previous one was handled. Handlers run `concurrency` at a time,
and the SDK collects what they send. Once all messages are settled, one transaction contains everything: what
acknowledged handlers sent, the others as retries and dead letters, and all offsets. If it does not commit, nothing is
visible and all messages are delivered again. The transaction starts after the handlers, so it is short however long
they take.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from penstock.ids import TopicPartition
from penstock.sdk.errors import TransactionError
from penstock.sdk.message import HandlerResult
from penstock.sdk.ports import GroupConsumer, Outgoing
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.dispatcher import MessageDispatcher
from penstock.sdk.receive.disposition import Completed, DeadLettered, Disposition
from penstock.sdk.receive.in_flight import AssignedPartition, DeliveryAttempt, InFlightMessage
from penstock.sdk.receive.settlement import record_for, report_disposition, report_handled
from penstock.sdk.receive.topic_layout import TopicLayout

log = logging.getLogger(__name__)

_RETRY_MS = 500
"""After a failed commit: its cause is likely still there."""


class RefusedError(TransactionError):
    """A broker refuses one of the messages for good; the transaction was aborted."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class TransactionCommitter(Protocol):
    """Commits transactions one at a time. Blocks."""

    def commit(self, outgoing: Sequence[Outgoing], positions: Mapping[TopicPartition, int], group: object) -> None:
        """Commit all or nothing.

        Raises:
            RefusedError: A broker refuses a message.
            TransactionError: The commit failed, or may have succeeded; either way its outcome no longer changes.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _SettledMessage:
    attempt: DeliveryAttempt
    disposition: Disposition
    outgoing: tuple[Outgoing, ...]


class ExactlyOnce:
    """A settlement strategy. `wants_rewind` asks the polling thread to seek to the committed offsets."""

    is_transactional = True
    outlives_assignment = False
    needs_polling = False

    def __init__(
        self,
        dispatcher: MessageDispatcher,
        layout: TopicLayout,
        consumer: GroupConsumer,
        committer: TransactionCommitter,
    ) -> None:
        self._dispatcher = dispatcher
        self._layout = layout
        self._consumer = consumer
        self._committer = committer
        self._waiting: deque[InFlightMessage] = deque()
        self._current: dict[InFlightMessage, _SettledMessage | None] = {}
        self._is_committing = False
        self.wants_rewind = False
        group = dispatcher.options.group
        self._problem = OngoingProblem(
            log,
            f"group {group}: could not commit a transaction; its messages will be delivered again",
            f"group {group}: transactions commit again",
            clock=dispatcher.clock,
            is_explained=dispatcher.is_away,
        )

    def arrived(self, entries: Sequence[InFlightMessage]) -> None:
        with self._dispatcher.changed:
            self._waiting.extend(entries)
        self._start_next()

    def settle(self, attempt: DeliveryAttempt, result: HandlerResult, disposition: Disposition) -> None:
        with self._dispatcher.changed:
            if attempt.entry not in self._current:
                return
            self._current[attempt.entry] = self._settled_message(attempt, disposition)
        self._commit_if_handled()

    def complete(self, attempts: Sequence[DeliveryAttempt]) -> None:
        raise AssertionError("messages of a transaction are settled one by one")

    def forget(self, partitions: Set[AssignedPartition], are_lost: bool) -> None:
        for entry in [entry for entry in self._waiting if entry.partition in partitions]:
            self._waiting.remove(entry)
            self._dispatcher.dropped(entry)
        if self._is_committing:
            # The group's generation decides whether the commit is accepted.
            return
        # Handlers receive messages in order: those with a handler lie before those without.
        for entry in [
            entry
            for entry in self._current
            if entry.partition in partitions and (are_lost or not entry.is_with_handler)
        ]:
            del self._current[entry]
        self._commit_if_handled()
        self._start_next()

    def rewound(self) -> None:
        """All further messages come from the committed offsets."""
        with self._dispatcher.changed:
            self.wants_rewind = False
            self._current.clear()

    def _start_next(self) -> None:
        with self._dispatcher.changed:
            if self._current or self._is_committing or self.wants_rewind:
                return
            entries = list(self._waiting)
            self._waiting.clear()
            self._current = dict.fromkeys(entries)
        if entries:
            self._dispatcher.enqueue(entries)

    def _commit_if_handled(self) -> None:
        with self._dispatcher.changed:
            if self._is_committing or self.wants_rewind or not self._current or None in self._current.values():
                return
            self._is_committing = True
        self._dispatcher.runner.background(self._commit)

    def _settled_message(self, attempt: DeliveryAttempt, disposition: Disposition) -> _SettledMessage:
        assert attempt.transaction is not None
        sends = attempt.transaction.close()
        if isinstance(disposition, Completed):
            return _SettledMessage(attempt, disposition, sends)
        return _SettledMessage(attempt, disposition, (record_for(attempt.message, self._layout, disposition),))

    def _commit(self) -> None:
        """Blocks; runs beside the polling thread."""
        try:
            while not self._try_to_commit():
                pass
        except Exception as error:
            self._problem.report(error)
            self._dispatcher.call_later(_RETRY_MS, self._request_rewind)

    def _try_to_commit(self) -> bool:
        """False if one message made the transaction abort and has become a dead letter."""
        with self._dispatcher.changed:
            settled_messages = [settled for settled in self._current.values() if settled is not None]
            positions: dict[TopicPartition, int] = {}
            for entry in self._current:
                tp = entry.partition.topic_partition
                positions[tp] = max(entry.offset + 1, positions.get(tp, 0))
            group = self._consumer.group_metadata()
        senders = [settled for settled in settled_messages for _ in settled.outgoing]
        try:
            self._committer.commit(
                [each for settled in settled_messages for each in settled.outgoing], positions, group
            )
        except RefusedError as error:
            self._dead_letter_sender(senders[error.index], error)
            return False
        self._problem.end()
        self._committed(settled_messages)
        return True

    def _request_rewind(self) -> None:
        with self._dispatcher.changed:
            self._is_committing = False
            self.wants_rewind = True

    def _dead_letter_sender(self, settled: _SettledMessage, error: RefusedError) -> None:
        """Make the message whose handler sent the refused record a dead letter; the others stay as they are."""
        message = settled.attempt.message
        if isinstance(settled.disposition, DeadLettered):
            raise TransactionError(f"the cluster refused a dead letter: {error}") from error
        disposition = DeadLettered(message.attempt, f"SendError: {error}")
        with self._dispatcher.changed:
            letter = record_for(message, self._layout, disposition)
            self._current[settled.attempt.entry] = _SettledMessage(settled.attempt, disposition, (letter,))

    def _committed(self, settled_messages: Sequence[_SettledMessage]) -> None:
        for settled in settled_messages:
            if isinstance(settled.disposition, Completed):
                report_handled(self._dispatcher, settled.attempt)
            else:
                report_disposition(self._dispatcher, settled.attempt.message, settled.disposition)
            self._dispatcher.settled(settled.attempt.entry)
        with self._dispatcher.changed:
            self._current.clear()
            self._is_committing = False
        self._start_next()
