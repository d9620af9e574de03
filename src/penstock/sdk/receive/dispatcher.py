"""Tracks the messages of a subscription in flight and dispatches them to handlers.

Messages enter through `receive`, reach handlers through the runner, and leave through a `Settlement`. Any thread may
call. One lock guards all state, and nothing blocks while holding it. `tick` drives everything that depends on time.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from penstock.clock import Clock
from penstock.ids import TopicPartition
from penstock.sdk.errors import SettledError
from penstock.sdk.headers import failures_of
from penstock.sdk.hooks.base import HookChain
from penstock.sdk.message import Acknowledged, Failed, HandlerResult, Message, MessageTransaction, Rejected, Reply
from penstock.sdk.ports import Received
from penstock.sdk.receive.dedup_claims import DedupClaims
from penstock.sdk.receive.disposition import Retry, disposition_of, with_failure
from penstock.sdk.receive.flow_control import RateLimit
from penstock.sdk.receive.handler_call import Handler, HandlerSteps
from penstock.sdk.receive.handler_failures import HandlerFailures, OnFailure
from penstock.sdk.receive.handler_runners import Runner
from penstock.sdk.receive.in_flight import AssignedPartition, DeliveryAttempt, HandlerCall, InFlightMessage, Settlement
from penstock.sdk.receive.key_order import KeyOrderedQueue
from penstock.sdk.receive.shared_retry_topic import SharedRetryRouter
from penstock.sdk.receive.subscription_options import ValidatedOptions


class MessageDispatcher:
    """The messages of one subscription."""

    def __init__(
        self,
        options: ValidatedOptions,
        handler: Handler,
        runner: Runner,
        *,
        hooks: HookChain,
        clock: Clock,
        reply: Reply | None = None,
        chance: Callable[[], float] = random.random,
        on_failure: OnFailure | None = None,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_away` tells whether the SDK knows, and has logged, that no broker is reachable."""
        self.options = options
        self.is_away = is_away
        self._failures = HandlerFailures(options, handler.function, on_failure)
        self.hooks = hooks
        self.clock = clock
        self.runner = runner
        self._reply = reply
        self._codecs = handler.codecs
        self.chance = chance
        self._claims = DedupClaims(options)
        self._handler_steps = HandlerSteps(handler, self._claims, hooks, self)
        self.changed = threading.Condition(threading.RLock())
        """The lock; notified when a message has left."""
        self._settlement: Settlement | None = None
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._queue: KeyOrderedQueue[InFlightMessage] = KeyOrderedQueue()
        self._rate = RateLimit(options.rate, clock.monotonic_ms())
        self._calls: set[HandlerCall] = set()
        self._unassigned_in_flight = 0
        """Messages in flight whose partition is no longer assigned to this member."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_draining = False

    def settle_with(self, settlement: Settlement) -> None:
        """Set the settlement strategy, before the first message."""
        self._settlement = settlement

    def route_with(self, router: SharedRetryRouter) -> None:
        """Set the router for messages of other subscriptions, before the first message."""
        self._handler_steps.route_with(router)

    # Called by the polling thread.

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        with self.changed:
            for tp in topic_partitions:
                self._partitions[tp] = AssignedPartition(tp)

    def receive(self, messages: Sequence[Received]) -> None:
        if not messages:
            return
        entries = []
        with self.changed:
            for received in messages:
                partition = self._partition_of(received)
                partition.offsets.add(received.offset)
                entry = InFlightMessage(received, partition, self._order_key_of(received))
                partition.entries.add(entry)
                entries.append(entry)
        if self.hooks.observes("received"):
            for entry in entries:
                self.hooks.received(Message(entry.received, codecs=self._codecs))
        self._required_settlement().arrived(entries)

    def leave_behind(self, messages: Sequence[Received]) -> None:
        """Note messages that came too late to be handled: no offset behind them is committed."""
        with self.changed:
            for received in messages:
                self._partition_of(received).offsets.add(received.offset)

    def tick(self) -> None:
        """Run timers that are due, and fail messages whose deadline has passed."""
        now_ms = self.clock.monotonic_ms()
        with self.changed:
            due = []
            while self._timers and self._timers[0][0] <= now_ms:
                due.append(heapq.heappop(self._timers)[2])
            late = [
                (call, attempt)
                for call in self._calls
                for attempt in call.attempts
                if not attempt.is_settled and attempt.deadline_ms is not None and attempt.deadline_ms <= now_ms
            ]
        for do in due:
            do()
        for call, attempt in late:
            self._time_out(call, attempt)
        self._dispatch()

    def positions(self, position_of: Callable[[TopicPartition], int | None]) -> dict[TopicPartition, int]:
        """The offsets that can be committed and were not returned before."""
        found = {}
        with self.changed:
            for tp, partition in self._partitions.items():
                if not partition.offsets.in_flight and (position := position_of(tp)) is not None:
                    partition.offsets.skip_to(position)
                if (offset := partition.offsets.newly_committable()) is not None:
                    found[tp] = offset
        return found

    def revoke(self, topic_partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Give partitions away: drop waiting messages, wait for running handlers, return what can be committed."""
        with self.changed:
            partitions = [self._partitions[tp] for tp in topic_partitions if tp in self._partitions]
            self._drop(partitions)
            self.changed.wait_for(lambda: not any(partition.is_busy for partition in partitions), timeout_s)
            found = {partition.topic_partition: partition.offsets.committable for partition in partitions}
            self._forget(partitions)
        return {tp: position for tp, position in found.items() if position is not None}

    def lose(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Another member owns the partitions: ignore the results of handlers that still run."""
        with self.changed:
            partitions = [self._partitions[tp] for tp in topic_partitions if tp in self._partitions]
            self._drop(partitions)
            self._forget(partitions)

    def restart(self) -> None:
        """Drop everything in flight; the consumer will deliver it again."""
        with self.changed:
            topic_partitions = list(self._partitions)
            self.lose(topic_partitions)
            self.assign(topic_partitions)

    def drain(self) -> None:
        """Call no more handlers, and drop waiting messages."""
        with self.changed:
            self._is_draining = True
            self._drop(list(self._partitions.values()))
            self.changed.notify_all()

    # State that the polling thread reads.

    @property
    def in_flight(self) -> int:
        with self.changed:
            return self._unassigned_in_flight + sum(len(partition.entries) for partition in self._partitions.values())

    @property
    def is_idle(self) -> bool:
        """No handler runs, and no retry or dead letter is being sent."""
        with self.changed:
            return (
                not self._calls
                and not self._unassigned_in_flight
                and not any(each.entries for each in self._partitions.values())
            )

    def topic_partitions(self) -> set[TopicPartition]:
        with self.changed:
            return set(self._partitions)

    def far_ahead(self) -> set[TopicPartition]:
        with self.changed:
            return {tp for tp, partition in self._partitions.items() if partition.offsets.is_far_ahead}

    @property
    def needs_polling(self) -> bool:
        return self._required_settlement().needs_polling

    def wait_for_room(self, max_count: int, timeout_s: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.in_flight < max_count, timeout_s)

    def sleep_s(self, max_s: float) -> float:
        """How long nothing has to be done, at most `max_s`."""
        now_ms = self.clock.monotonic_ms()
        with self.changed:
            waits_ms = [max_s * 1000]
            if len(self._queue):
                waits_ms.append(self._rate.wait_ms() or max_s * 1000)
            if (due_ms := self._queue.next_due_ms()) is not None:
                waits_ms.append(due_ms - now_ms)
            if self._timers:
                waits_ms.append(self._timers[0][0] - now_ms)
        return max(0.0, min(waits_ms)) / 1000

    # Called by the settlement.

    def enqueue(self, entries: Iterable[InFlightMessage]) -> None:
        """Allow the handlers of these messages to be called."""
        with self.changed:
            for entry in entries:
                if entry.partition.offsets.is_assigned or self._required_settlement().outlives_assignment:
                    self._queue.add(entry.order_key, entry)
            if self._is_draining and not self._required_settlement().outlives_assignment:
                self._drop(list(self._partitions.values()))
        self._dispatch()

    def settled(self, *entries: InFlightMessage) -> None:
        """The messages are finished: their offsets can be committed."""
        with self.changed:
            for entry in entries:
                if entry.partition.offsets.is_assigned and entry in entry.partition.entries:
                    entry.partition.offsets.settle(entry.offset)
                self._take_out(entry)
            self.changed.notify_all()

    def dropped(self, entry: InFlightMessage) -> None:
        """The message is not handled here: the owner of its partition receives it again."""
        with self.changed:
            self._remove(entry)

    def call_later(self, after_ms: float, do: Callable[[], None]) -> None:
        with self.changed:
            heapq.heappush(self._timers, (self.clock.monotonic_ms() + after_ms, next(self._numbers), do))

    # Called by handlers and the steps around them.

    def begin(self, attempts: Iterable[DeliveryAttempt]) -> list[DeliveryAttempt]:
        with self.changed:
            begun = [attempt for attempt in attempts if self._is_wanted(attempt.entry)]
            now_ms = self.clock.monotonic_ms()
            for attempt in begun:
                attempt.began_ms = now_ms
                attempt.deadline_ms = now_ms + self.options.deadline_ms
        return begun

    def settle_together(self, attempts: Sequence[DeliveryAttempt], result: HandlerResult) -> Sequence[DeliveryAttempt]:
        settlement = self._required_settlement()
        if not isinstance(result, Acknowledged) or settlement.is_transactional:
            return attempts
        apart: list[DeliveryAttempt] = []
        done: list[DeliveryAttempt] = []
        with self.changed:
            for attempt in attempts:
                if attempt.has_claim or not self._is_wanted(attempt.entry):
                    apart.append(attempt)
                elif not attempt.is_settled:
                    attempt.is_settled = True
                    done.append(attempt)
        if done:
            settlement.complete(done)
            with self.changed:
                for attempt in done:
                    attempt.entry.is_disposed = True
                    self._release_key(attempt.entry)
            self._dispatch()
        return apart

    def _is_wanted(self, entry: InFlightMessage) -> bool:
        return entry.partition.offsets.is_assigned or self._required_settlement().outlives_assignment

    def settle_attempt(self, attempt: DeliveryAttempt, result: HandlerResult) -> None:
        finish = self.settle_once(attempt, result)
        if finish is None:
            raise SettledError(
                f"{attempt.message!r} is already settled: it was acknowledged, retried or rejected, or timed out"
            )
        if attempt.has_claim:
            self.runner.background(finish)
        else:
            finish()

    def extend(self, attempt: DeliveryAttempt, by_ms: int) -> None:
        with self.changed:
            if attempt.is_settled:
                raise SettledError(f"{attempt.message!r} is already settled: its deadline cannot be extended")
            attempt.deadline_ms = self.clock.monotonic_ms() + by_ms
        if attempt.has_claim:
            self.runner.background(lambda: self._claims.extend(attempt, by_ms))

    def settle_once(self, attempt: DeliveryAttempt, result: HandlerResult) -> Callable[[], None] | None:
        with self.changed:
            if attempt.is_settled:
                return None
            attempt.is_settled = True
        return partial(self._dispose, attempt, result)

    def call_returned(self, call: HandlerCall) -> None:
        with self.changed:
            self._calls.discard(call)
            for attempt in call.attempts:
                attempt.entry.has_returned = True
                self._release_key(attempt.entry)
            self.changed.notify_all()
        self._dispatch()

    # Internals.

    def _dispose(self, attempt: DeliveryAttempt, result: HandlerResult) -> None:
        """Carry out the result of a message. The dedup claim comes first, so that no member repeats finished work."""
        entry = attempt.entry
        result = self._claims.finish(attempt, result)
        disposition = disposition_of(result, failures_of(entry.received.headers), self.options.retries, self.chance)
        if isinstance(result, Failed):
            self._failures.failed(attempt.message, result, disposition)
        elif isinstance(result, Rejected) and result.cause is not None:
            self._failures.undecodable(attempt.message, result.cause)
        settlement = self._required_settlement()
        if not entry.partition.offsets.is_assigned and not settlement.outlives_assignment:
            with self.changed:
                self._remove(entry)
        elif isinstance(disposition, Retry) and self.options.ordered:
            entry.local_retry = disposition
            self.hooks.retried(attempt.message, disposition.error, disposition.after_ms)
        else:
            settlement.settle(attempt, result, disposition)
        with self.changed:
            entry.is_disposed = True
            self._release_key(entry)
        self._dispatch()

    def _release_key(self, entry: InFlightMessage) -> None:
        """Once the handler has returned and the result is carried out, release the next message of the key, or this one
        for its retry.
        """
        if not (entry.has_returned and entry.is_disposed):
            return
        if entry.local_retry is None:
            self._queue.finish(entry.order_key)
            return
        retry, entry.local_retry = entry.local_retry, None
        if entry not in entry.partition.entries:
            self._queue.finish(entry.order_key)
            return
        entry.is_with_handler = entry.has_returned = entry.is_disposed = False
        entry.received = with_failure(entry.received, Message(entry.received), retry.failures, retry.error)
        if self._is_draining:
            self._remove(entry)
            self._queue.finish(entry.order_key)
            return
        self._queue.retry_at(entry.order_key, entry, self.clock.monotonic_ms() + retry.after_ms)

    def _dispatch(self) -> None:
        with self.changed:
            now_ms = self.clock.monotonic_ms()
            self._queue.release_due(now_ms)
            while len(self._calls) < self.options.concurrency:
                max_count = self._rate.allowed(now_ms, min(self.options.batch or 1, len(self._queue)))
                if not max_count:
                    return
                entries = self._queue.take(max_count)
                self._rate.take(len(entries))
                call = HandlerCall([self._new_attempt(entry) for entry in entries])
                self._calls.add(call)
                call.task = self.runner.start(self._handler_steps.steps(call))

    def _new_attempt(self, entry: InFlightMessage) -> DeliveryAttempt:
        entry.is_with_handler = True
        is_transactional = self._required_settlement().is_transactional
        transaction = MessageTransaction(self._codecs) if is_transactional else None
        return DeliveryAttempt(entry, self, self._reply, transaction, self._codecs)

    def _time_out(self, call: HandlerCall, attempt: DeliveryAttempt) -> None:
        error = f"DeadlineError: not settled within {self.options.deadline_ms / 1000:g} s"
        finish = self.settle_once(attempt, Failed(error, has_timed_out=True))
        if finish is None:
            return
        if attempt.has_claim:
            self.runner.background(finish)
        else:
            finish()
        if call.task is not None and all(each.is_settled for each in call.attempts):
            call.task.cancel()

    def _partition_of(self, received: Received) -> AssignedPartition:
        partition = self._partitions.get(received.topic_partition)
        if partition is None or not partition.offsets.accepts(received.offset):
            # The consumer went back: messages are delivered again and tracked from there.
            self.lose([received.topic_partition])
            partition = self._partitions[received.topic_partition] = AssignedPartition(received.topic_partition)
        return partition

    def _order_key_of(self, received: Received) -> tuple[str, bytes] | None:
        if not self.options.ordered or received.key is None:
            return None
        return Message(received).topic, received.key

    def _drop(self, partitions: Sequence[AssignedPartition]) -> None:
        """Drop messages of these partitions that wait for a handler."""
        settlement, gone = self._required_settlement(), set(partitions)
        settlement.forget(gone, are_lost=False)
        if not settlement.outlives_assignment:
            for entry in self._queue.drop(lambda entry: entry.partition in gone):
                self._remove(entry)

    def _forget(self, partitions: Sequence[AssignedPartition]) -> None:
        for partition in partitions:
            partition.offsets.is_assigned = False
            if self._required_settlement().outlives_assignment:
                self._unassigned_in_flight += len(partition.entries)
            else:
                partition.entries.clear()
            self._partitions.pop(partition.topic_partition, None)
        self._required_settlement().forget(set(partitions), are_lost=True)
        self.changed.notify_all()

    def _remove(self, entry: InFlightMessage) -> None:
        self._take_out(entry)
        self.changed.notify_all()

    def _take_out(self, entry: InFlightMessage) -> None:
        if entry in entry.partition.entries:
            entry.partition.entries.discard(entry)
            if not entry.partition.offsets.is_assigned:
                self._unassigned_in_flight -= 1

    def _required_settlement(self) -> Settlement:
        assert self._settlement is not None, "how messages end is known before the first comes"
        return self._settlement
