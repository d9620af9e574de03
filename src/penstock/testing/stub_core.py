"""Replaces the cluster behind a stub: topics, groups, a clock, and subscriptions that run step by step.

`run`, `advance` and `request` are generators of turns. At each turn they yield until when they let time pass, handlers
run, and they receive whether any did. `sync_runner.py` calls handlers, `async_runner.py` awaits them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from penstock.brokerless.memory.topics import MemoryTopics
from penstock.clock import ManualClock
from penstock.sdk.counters import Counters, SendTally
from penstock.sdk.errors import ClosedError, InvalidInputError, NoReplyError
from penstock.sdk.headers import CORRELATION, REPLY_TO, value_of
from penstock.sdk.hooks.base import HookChain, Hooks, check_hooks
from penstock.sdk.message import Message, Reply
from penstock.sdk.payloads.codecs import JSON_ONLY, Codecs
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_runners import HandlerStoppedError, Runner
from penstock.sdk.receive.subscription import Subscription, SubscriptionStatus, status_of
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.receive.topic_layout import TopicProvisioner
from penstock.sdk.send.observed_producer import ObservedProducer, SendObserver
from penstock.sdk.send.request_reply import REPLY_TOPIC
from penstock.sdk.send.send_outcome import Receipts, no_receipts
from penstock.sdk.send.sending_options import check_transactional_id
from penstock.sdk.timers import TimerQuery, WaitingMessage, select_timers
from penstock.sdk.validation import check_whole_number
from penstock.testing.consumer import StubConsumer
from penstock.testing.groups import MemoryGroups
from penstock.testing.producer import StubProducer, StubTransaction, StubTransactionCommitter

_GATE_STEP_MS = 1
"""A full subscription does not say how long it waits for room before it pauses."""


Raises = type[BaseException] | tuple[type[BaseException], ...]
Answer = TypeVar("Answer")
Turns = Generator[int, bool, Answer]

NOW_MS = 0
"""Yielded by a generator that lets no time pass."""


@dataclass(frozen=True, slots=True)
class SteppedSubscription:
    """A subscription without a thread."""

    subscription: Subscription
    consumer: StubConsumer

    def receive(self) -> bool:
        """Pass arrived messages to the runner; False if there are none."""
        given = self.consumer.given
        self.subscription.step(0.0)
        return self.consumer.given != given

    def sleep_ms(self, max_ms: int) -> int:
        """How long it has nothing to do, at most `max_ms`. Call it when there is nothing to do now."""
        polls = self.consumer.polls
        self.subscription.step(0.0)
        if self.consumer.polls == polls:
            return min(_GATE_STEP_MS, max_ms)
        # It reports how long it would wait as the timeout of its poll; the stub does not wait.
        self.subscription.step(max_ms / 1000)
        return min(max_ms, max(1, math.ceil(self.consumer.timeout_s * 1000)))

    def drain(self) -> None:
        """Call no more handlers."""
        self.subscription.ask_to_stop(0.0)
        self.subscription.step(0.0)


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """An exception of a handler."""

    group: str
    """The group of the subscription."""
    message: Message
    """The message that the handler was called with."""
    error: BaseException
    """The exception."""


class StubCore:
    """Has the methods of the SDK's `ClientCore`."""

    room_s = 0.0

    def __init__(
        self,
        partitions: int,
        hooks: Sequence[Hooks],
        clock: ManualClock | None,
        on_put: Callable[[], None] = lambda: None,
        raises: Raises = AssertionError,
    ) -> None:
        """`on_put` is called when something was sent. Handler exceptions of the types in `raises` reach the test."""
        check_whole_number("partitions", partitions, 1)
        check_hooks(hooks)
        self.clock = clock or ManualClock()
        self.topics = MemoryTopics(partitions)
        self.groups = MemoryGroups(self.topics)
        self.stepped: list[SteppedSubscription] = []
        self.failures: list[HandlerFailure] = []
        """What handlers have raised, in order."""
        self._raises = raises
        self._to_raise: BaseException | None = None
        self._hooks = HookChain(hooks)
        self._tally = SendTally()
        self._observer = SendObserver(self._hooks, self._tally, self.clock)
        self._producer = StubProducer(self.topics, self.clock, on_put)
        self._observed = ObservedProducer(self._producer, self._observer)
        self._requests = 0
        self._is_closed = False

    @property
    def transactions(self) -> StubCore:
        return self

    @contextmanager
    def transaction(self, transactional_id: str | None = None, codecs: Codecs = JSON_ONLY) -> Iterator[StubTransaction]:
        """Commit when the block ends, abort when it raises."""
        check_transactional_id(transactional_id)
        self._check_open()
        transaction = StubTransaction(self._producer, self._observer, codecs)
        try:
            yield transaction
        except BaseException:
            transaction.abort()
            raise
        transaction.commit()

    @property
    def counters(self) -> Counters:
        return self._tally.counters(0, 0)

    def has_room_for(self, messages: Sequence[Outgoing]) -> bool:
        return True

    def send(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        self._check_open()
        return self._observed.send_soon(outgoing)

    def send_many(self, topic: str, messages: Sequence[Outgoing], room_s: float = 0.0) -> Future[Receipts]:
        self._check_open()
        return self._observed.send_many(messages) if messages else no_receipts(topic)

    def each_partition(self, outgoing: Outgoing) -> list[Outgoing]:
        if outgoing.partition is not None or outgoing.key is not None:
            return [outgoing]
        return [replace(outgoing, partition=number) for number in range(self.topics.partitions(outgoing.topic))]

    def read_timers(self, query: TimerQuery) -> list[WaitingMessage]:
        """The delayed messages that a query asks for."""
        waiting = [
            WaitingMessage(
                *each.topic_partition, each.due_ms, each.outgoing.value, each.outgoing.key, each.outgoing.headers
            )
            for each in self.topics.pending(query.topic)
        ]
        return select_timers(waiting, query)

    def subscription(self, options: ValidatedOptions, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """Create a subscription that is a member of its group from now on."""
        self._check_open()
        for topic in options.topics:
            self.topics.create(topic)
        consumer = StubConsumer(options.group, self.topics, self.groups)
        subscription = Subscription(
            options,
            handler,
            provisioner=TopicProvisioner(self.topics),
            consumer=consumer,
            producer=self._observed,
            runner=runner,
            committer=StubTransactionCommitter(self._producer, self._observer, self.groups, options.group),
            hooks=self._hooks,
            reply=reply,
            clock=self.clock,
            chance=_no_chance,
            on_failure=partial(self._failed, options.group),
        )
        subscription.join()
        self.stepped.append(SteppedSubscription(subscription, consumer))
        return subscription

    def raise_failure(self) -> None:
        """Raise what a handler has raised and the test has to see; once."""
        failure, self._to_raise = self._to_raise, None
        if failure is not None:
            raise failure

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        self._is_closed = True

    def working(self, until_ms: Callable[[], int] = lambda: NOW_MS) -> Turns[None]:
        """Handle everything that is due now, and all that follows from it."""
        is_busy = True
        while is_busy:
            is_busy = self.topics.fire(self.clock.now_ms())
            for each in list(self.stepped):
                is_busy = each.receive() or is_busy
            is_busy = (yield until_ms()) or is_busy

    def passing(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> Turns[None]:
        """Let time pass, from one moment at which something is due to the next."""
        end_ms = self.clock.now_ms() + round(seconds * 1000)

        def until_ms() -> int:
            return NOW_MS if is_enough() else end_ms

        yield from self.working(until_ms)
        while not is_enough() and (left_ms := end_ms - self.clock.now_ms()) > 0:
            due_ms = self.topics.next_due_ms()
            waits_ms = [left_ms] if due_ms is None else [left_ms, due_ms - self.clock.now_ms()]
            waits_ms += [each.sleep_ms(left_ms) for each in self.stepped]
            self.clock.advance(max(1, min(waits_ms)))
            yield from self.working(until_ms)

    def asking(self, outgoing: Outgoing, timeout_s: float) -> Turns[Received]:
        """Send a request, and let time pass until its reply is there."""
        look = self._ask(outgoing)
        yield from self.passing(timeout_s, lambda: look() is not None)
        answer = look()
        if answer is None:
            raise NoReplyError(f"no reply to the request to {outgoing.topic} within {timeout_s:g} s")
        return answer

    def _ask(self, outgoing: Outgoing) -> Callable[[], Received | None]:
        """Send a request; the result looks for its reply."""
        self.topics.create(REPLY_TOPIC, 1)
        self._requests += 1
        start, correlation = self.topics.end_offset(REPLY_TOPIC, 0), f"stub-{self._requests}".encode()
        marks = ((REPLY_TO, f"{REPLY_TOPIC}/0".encode()), (CORRELATION, correlation))
        self.send(replace(outgoing, headers=(*outgoing.headers, *marks))).result()

        def look() -> Received | None:
            replies, _ = self.topics.read(REPLY_TOPIC, 0, start, self.topics.end_offset(REPLY_TOPIC, 0))
            return next((each for each in replies if value_of(each.headers, CORRELATION) == correlation), None)

        return look

    def _failed(self, group: str, message: Message, error: BaseException) -> None:
        # The runner has wrapped what is not an error of the handler, such as pytest.fail().
        shown = error.__cause__ if isinstance(error, HandlerStoppedError) and error.__cause__ is not None else error
        self.failures.append(HandlerFailure(group, message, shown))
        if self._to_raise is None and (isinstance(shown, self._raises) or not isinstance(shown, Exception)):
            self._to_raise = shown

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client is closed")


def _no_chance() -> float:
    """The middle of the range: retries arrive exactly when their delays say."""
    return 0.5


class StubSubscriptions:
    """Has the methods of the SDK's `Subscriptions`; each subscription starts when it is added."""

    def __init__(self, core: StubCore) -> None:
        self._core = core
        self._makers: list[Callable[[], Subscription]] = []
        self._registered: list[tuple[ValidatedOptions, Handler]] = []
        self._is_stopped = False

    def add(self, options: ValidatedOptions, handler: Handler, make: Callable[[], Subscription]) -> None:
        self._makers.append(make)
        self._registered.append((options, handler))
        if not self._is_stopped:
            make()

    def start(self) -> None:
        if not self._makers:
            raise InvalidInputError("nothing to start: call subscribe first")
        if self._is_stopped:
            self._is_stopped = False
            for make in self._makers:
                make()

    def statuses(self) -> tuple[SubscriptionStatus, ...]:
        is_running = not self._is_stopped
        return tuple(replace(status_of(*each), is_running=is_running, is_ready=is_running) for each in self._registered)

    def stop(self, grace_s: float) -> None:
        self.drain()
        self.leave()

    def drain(self) -> None:
        """Call no more handlers, and drop waiting messages."""
        self._is_stopped = True
        for each in self._core.stepped:
            each.drain()

    def leave(self) -> None:
        """Then commit settled offsets and leave the groups."""
        for each in self._core.stepped:
            each.subscription.leave()
        self._core.stepped.clear()
