"""Settlement of messages one by one: at least once, or at most once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future

from penstock.sdk.errors import ClientError, SendError
from penstock.sdk.message import Failed, HandlerResult, Message
from penstock.sdk.ports import GroupConsumer, MessageProducer, Outgoing, Receipt
from penstock.sdk.problem_log import OngoingProblem
from penstock.sdk.receive.dispatcher import MessageDispatcher
from penstock.sdk.receive.disposition import (
    Completed,
    DeadLettered,
    Disposition,
    Rerouted,
    Retry,
    dead_letter_record,
    rerouted_record,
    retry_record,
)
from penstock.sdk.receive.handler_failures import dead_letter_line
from penstock.sdk.receive.in_flight import AssignedPartition, DeliveryAttempt, InFlightMessage
from penstock.sdk.receive.topic_layout import TopicLayout

log = logging.getLogger(__name__)

_RETRY_MS = 1000
"""How long to wait, about, before a failed send or commit is repeated."""
_MAX_REFUSALS = 3


class FailedMessageForwarder:
    """Sends retries and dead letters until they are durable.

    A retry that a broker refuses repeatedly becomes a dead letter. Not on the first refusal: a broker refuses a batch
    as a whole, so that may be due to another message.
    """

    def __init__(self, dispatcher: MessageDispatcher, layout: TopicLayout, producer: MessageProducer) -> None:
        self._dispatcher = dispatcher
        self._layout = layout
        self._producer = producer
        self._problems: dict[str, OngoingProblem] = {}

    def forward(
        self,
        message: Message,
        disposition: Retry | DeadLettered | Rerouted,
        done: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Call `done` once the record is durable, in any thread; stop sending once `is_wanted` returns False."""
        outgoing, refusals = record_for(message, self._layout, disposition), 0

        def send() -> None:
            if not is_wanted():
                return
            try:
                self._producer.send_soon(outgoing).add_done_callback(answered)
            except ClientError as error:
                failed(error)

        def answered(future: Future[Receipt]) -> None:
            error = future.exception()
            if error is None:
                self._problem(outgoing.topic).end()
                self._report(message, disposition)
                done()
            else:
                failed(error)

        def failed(error: BaseException) -> None:
            nonlocal refusals
            self._problem(outgoing.topic).report(error)
            refusals += isinstance(error, SendError) and not error.is_retriable
            if refusals >= _MAX_REFUSALS and isinstance(disposition, Retry):
                self.forward(message, DeadLettered(disposition.failures, disposition.error), done, is_wanted)
            else:
                # At different times, so that messages that were refused in one batch get into different ones.
                self._dispatcher.call_later(_RETRY_MS * (0.5 + self._dispatcher.chance()), send)

        send()

    def _problem(self, topic: str) -> OngoingProblem:
        if topic not in self._problems:
            group = self._dispatcher.options.group
            self._problems[topic] = OngoingProblem(
                log,
                f"group {group}: could not send failed messages to {topic}; keeping them in memory and retrying",
                f"group {group}: failed messages go to {topic} again",
                clock=self._dispatcher.clock,
                is_explained=self._dispatcher.is_away,
            )
        return self._problems[topic]

    def _report(self, message: Message, disposition: Retry | DeadLettered | Rerouted) -> None:
        report_disposition(self._dispatcher, message, disposition)


def record_for(message: Message, layout: TopicLayout, disposition: Retry | DeadLettered | Rerouted) -> Outgoing:
    """The retry, dead letter or moved record of a message."""
    if isinstance(disposition, Rerouted):
        return rerouted_record(message, disposition.to)
    if isinstance(disposition, Retry):
        return retry_record(message, layout, disposition.failures, disposition.error, disposition.after_ms)
    return dead_letter_record(message, layout, disposition.failures, disposition.error)


def report_disposition(
    dispatcher: MessageDispatcher, message: Message, disposition: Retry | DeadLettered | Rerouted
) -> None:
    """Tell the hooks, and log dead letters."""
    if isinstance(disposition, Rerouted):
        return
    if isinstance(disposition, Retry):
        dispatcher.hooks.retried(message, disposition.error, disposition.after_ms)
        return
    log.warning(dead_letter_line(dispatcher.options.group, message, disposition))
    dispatcher.hooks.dead_lettered(message, disposition.error)


def complete(dispatcher: MessageDispatcher, attempts: Sequence[DeliveryAttempt]) -> None:
    """Messages were acknowledged, and nothing has to be sent for them."""
    if dispatcher.hooks.observes("handled"):
        for attempt in attempts:
            report_handled(dispatcher, attempt)
    dispatcher.settled(*(attempt.entry for attempt in attempts))


def report_handled(dispatcher: MessageDispatcher, attempt: DeliveryAttempt) -> None:
    dispatcher.hooks.handled(attempt.message, (dispatcher.clock.monotonic_ms() - attempt.began_ms) / 1000)


class AtLeastOnce:
    """Settles a message when it was acknowledged, or is durable as a retry or dead letter."""

    is_transactional = False
    outlives_assignment = False
    needs_polling = False

    def __init__(self, dispatcher: MessageDispatcher, layout: TopicLayout, producer: MessageProducer) -> None:
        self._dispatcher = dispatcher
        self._forwarder = FailedMessageForwarder(dispatcher, layout, producer)

    def arrived(self, entries: Sequence[InFlightMessage]) -> None:
        self._dispatcher.enqueue(entries)

    def settle(self, attempt: DeliveryAttempt, result: HandlerResult, disposition: Disposition) -> None:
        entry = attempt.entry
        if isinstance(disposition, Completed):
            self.complete([attempt])
            return
        self._forwarder.forward(
            attempt.message,
            disposition,
            done=lambda: self._dispatcher.settled(entry),
            is_wanted=lambda: entry.partition.offsets.is_assigned,
        )

    def complete(self, attempts: Sequence[DeliveryAttempt]) -> None:
        complete(self._dispatcher, attempts)

    def forget(self, partitions: Set[AssignedPartition], are_lost: bool) -> None:
        pass


class AtMostOnce:
    """Commits a message before its handler is called. A failed message is gone, unless its handler asked for a retry or
    rejected it.
    """

    is_transactional = False
    outlives_assignment = True

    def __init__(
        self, dispatcher: MessageDispatcher, layout: TopicLayout, producer: MessageProducer, consumer: GroupConsumer
    ) -> None:
        self._dispatcher = dispatcher
        self._forwarder = FailedMessageForwarder(dispatcher, layout, producer)
        self._consumer = consumer
        self._arrived: list[InFlightMessage] = []
        self._is_committing = False

    @property
    def needs_polling(self) -> bool:
        return self._is_committing

    def arrived(self, entries: Sequence[InFlightMessage]) -> None:
        self._arrived.extend(entries)
        self._commit()

    def settle(self, attempt: DeliveryAttempt, result: HandlerResult, disposition: Disposition) -> None:
        if isinstance(disposition, Completed):
            self.complete([attempt])
            return
        if not isinstance(result, Failed) or result.is_requested:
            done = lambda: self._dispatcher.settled(attempt.entry)  # noqa: E731
            self._forwarder.forward(attempt.message, disposition, done=done, is_wanted=lambda: True)
            return
        self._dispatcher.settled(attempt.entry)

    def complete(self, attempts: Sequence[DeliveryAttempt]) -> None:
        complete(self._dispatcher, attempts)

    def forget(self, partitions: Set[AssignedPartition], are_lost: bool) -> None:
        for entry in [entry for entry in self._arrived if entry.partition in partitions]:
            self._arrived.remove(entry)
            self._dispatcher.dropped(entry)

    def _commit(self) -> None:
        """Runs in the polling thread, which alone may use the consumer: one commit at a time."""
        if self._is_committing or not self._arrived:
            return
        entries, self._arrived = self._arrived, []
        self._is_committing = True
        positions = {entry.partition.topic_partition: entry.offset + 1 for entry in entries}

        def done(is_committed: bool) -> None:
            self._is_committing = False
            if is_committed:
                self._dispatcher.enqueue(entries)
            else:
                # The new owners of revoked partitions handle their messages.
                self._arrived = [entry for entry in entries if entry.partition.offsets.is_assigned] + self._arrived
                for entry in entries:
                    if not entry.partition.offsets.is_assigned:
                        self._dispatcher.dropped(entry)
            self._dispatcher.call_later(0 if is_committed else _RETRY_MS, self._commit)

        self._consumer.commit(positions, done)
