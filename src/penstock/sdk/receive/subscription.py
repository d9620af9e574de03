"""A subscription: the thread that polls and feeds the dispatcher; the set of subscriptions of a client, and how each of
them is doing.

The thread polls as long as the subscription runs, whatever handlers do. It pauses partitions when enough messages are
in flight, so that slow handlers never lose the membership. Only this thread uses the consumer.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.sdk.errors import ClientError, InvalidInputError
from penstock.sdk.hooks.base import HookChain, Hooks
from penstock.sdk.message import Reply
from penstock.sdk.ports import GroupConsumer, MessageProducer, Received
from penstock.sdk.problem_log import OngoingProblem, error_line
from penstock.sdk.receive.dispatcher import MessageDispatcher
from penstock.sdk.receive.exactly_once import ExactlyOnce, TransactionCommitter
from penstock.sdk.receive.flow_control import FlowDecision, InFlightLimit
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_failures import OnFailure, handler_name
from penstock.sdk.receive.handler_runners import Runner
from penstock.sdk.receive.settlement import AtLeastOnce, AtMostOnce
from penstock.sdk.receive.shared_retry_topic import SharedRetryRouter
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.sdk.receive.topic_layout import RetryTopic, TopicLayout
from penstock.sdk.topic_names import view_of

log = logging.getLogger(__name__)

POLL_S = 0.05
_MAX_POLL_MESSAGES = 500
REVOKE_WAIT_S = 3.0
"""How long a revoked partition waits for its running handlers."""
GRACE_S = 30.0
_PROVISION_RETRY_S = 1.0


class Provisioner(Protocol):
    """Creates what a subscription needs in the cluster."""

    def provision(self, options: ValidatedOptions) -> TopicLayout:
        """Raises `ClientError` if the cluster is unreachable or refuses."""
        ...

    def retry_topic(self, group: str, topic: str) -> RetryTopic:
        """The retry topic of a topic that another subscription of the group reads. Raises `ClientError` likewise."""
        ...


class Subscription:
    """Runs once, from `start` to `stop`."""

    def __init__(
        self,
        options: ValidatedOptions,
        handler: Handler,
        *,
        provisioner: Provisioner,
        consumer: GroupConsumer,
        producer: MessageProducer,
        runner: Runner,
        committer: TransactionCommitter | None = None,
        hooks: Hooks | None = None,
        reply: Reply | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        on_failure: OnFailure | None = None,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a subscription that is not started.

        Args:
            options: The validated options.
            handler: The application's handler.
            provisioner: Creates missing topics.
            consumer: The member of the group.
            producer: Sends retries and dead letters. Its success must mean that the cluster has them.
            runner: Runs the handlers.
            committer: Commits transactions; required for exactly-once.
            hooks: Observe messages.
            reply: Answers requests.
            clock: The clock for deadlines, rates and retries.
            chance: Returns numbers from 0 to 1, for jitter.
            on_failure: Called with exceptions of handlers.
            is_away: Tells whether the SDK knows, and has logged, that no broker is reachable.
        """
        self.options = options
        self._name = f"the subscription of group {options.group} to {', '.join(options.topics)}"
        self._provisioner = provisioner
        self._consumer = consumer
        self._producer = producer
        self._runner = runner
        self._committer = committer
        self._clock = clock or SystemClock()
        self._dispatcher = MessageDispatcher(
            options,
            handler,
            runner,
            hooks=HookChain(() if hooks is None else (hooks,)),
            clock=self._clock,
            reply=reply,
            chance=chance,
            on_failure=on_failure,
            is_away=is_away,
        )
        self._problem = OngoingProblem(
            log,
            f"{self._name} could not start; retrying",
            f"{self._name} started",
            clock=self._clock,
            is_explained=is_away,
        )
        self._limit = InFlightLimit(options.in_flight)
        self._bases = {} if options.tags is None else {view_of(topic, options.tags): topic for topic in options.topics}
        self._exactly_once: ExactlyOnce | None = None
        self._paused: set[TopicPartition] = set()
        self._newly_assigned: set[TopicPartition] = set()
        """Assigned since the last step."""
        self._stopping = threading.Event()
        self._grace_ends_ms: float | None = None
        self._is_joined = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-{options.group}", daemon=True)
        self.failure: Exception | None = None
        """Why it ended on its own: the cluster refuses it for good, or the SDK has a bug."""

    def start(self) -> None:
        """Return at once. The thread creates topics and joins the group as soon as the cluster is reachable."""
        self._thread.start()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Call no more handlers, wait up to `grace_s` for running ones, and leave the group."""
        self.ask_to_stop(grace_s)
        self.wait()

    def ask_to_stop(self, grace_s: float = GRACE_S) -> None:
        """Like `stop`, without waiting."""
        self._grace_ends_ms = self._clock.monotonic_ms() + grace_s * 1000
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def topic_partitions(self) -> set[TopicPartition]:
        """The partitions that it owns now."""
        return self._dispatcher.topic_partitions()

    @property
    def in_flight(self) -> int:
        """Messages received and not settled."""
        return self._dispatcher.in_flight

    @property
    def is_ready(self) -> bool:
        """It has joined its group, and a broker is reachable."""
        return self.is_running and self._is_joined and not self._dispatcher.is_away()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self.join():
                self._stopping.wait(_PROVISION_RETRY_S)
            while not self.is_over():
                self.step(POLL_S)
        except InvalidInputError as error:
            self.failure = error
            log.error("%s could not start; not retrying: %s", self._name, error)
        except Exception as error:
            self.failure = error
            log.exception("%s ended because of a bug in the SDK: %s", self._name, error_line(error))
        finally:
            self.leave()

    # The steps of the thread, which the stub performs itself.

    def join(self) -> bool:
        """Create missing topics and join the group; False if that is not possible yet."""
        options = self.options
        try:
            layout = self._provisioner.provision(options)
            from_end = () if options.from_beginning else layout.topics
            self._configure(layout)
            self._consumer.join([*layout.topics, *layout.retry_topics], self, from_end=from_end)
        except InvalidInputError:
            # The cluster would refuse it again.
            raise
        except ClientError as error:
            self._problem.report(error)
            return False
        self._problem.end()
        self._is_joined = True
        return True

    def step(self, timeout_s: float) -> None:
        """Poll for up to `timeout_s`, and do what is due."""
        if self._stopping.is_set():
            self._dispatcher.drain()
        self._dispatcher.tick()
        wanted = self._limit.decide(self._dispatcher.in_flight, self._clock.monotonic_ms())
        if wanted is FlowDecision.WAIT and not self._dispatcher.needs_polling:
            self._dispatcher.wait_for_room(self._limit.limit, self._dispatcher.sleep_s(timeout_s))
            return
        self._pause_and_resume()
        self._receive(max(1, self._limit.room(self._dispatcher.in_flight)), self._dispatcher.sleep_s(timeout_s))
        if self._exactly_once is not None and self._exactly_once.wants_rewind:
            self._rewind_to_committed()
        if self.options.delivery == "at-least-once" and (
            positions := self._dispatcher.positions(self._consumer.position)
        ):
            self._consumer.store_offsets(positions)

    def is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        assert self._grace_ends_ms is not None
        return self._dispatcher.is_idle or self._clock.monotonic_ms() >= self._grace_ends_ms

    def leave(self) -> None:
        """Commit settled offsets and leave the group."""
        try:
            self._consumer.close()
        finally:
            self._runner.close()
            if self._committer is not None:
                self._committer.close()

    # RebalanceListener: called by the consumer inside `poll` and `close`.

    def assigned(self, topic_partitions: Sequence[TopicPartition]) -> None:
        log.info("group %s: partitions assigned: %s", self.options.group, _listed(topic_partitions))
        self._dispatcher.assign(topic_partitions)
        self._newly_assigned.update(topic_partitions)

    def revoked(self, topic_partitions: Sequence[TopicPartition]) -> None:
        log.info("group %s: partitions revoked: %s", self.options.group, _listed(topic_partitions))
        timeout_s = 0.0 if self._stopping.is_set() else REVOKE_WAIT_S
        positions = self._dispatcher.revoke(topic_partitions, timeout_s)
        if self.options.delivery == "at-least-once":
            self._consumer.store_offsets(positions)

    def lost(self, topic_partitions: Sequence[TopicPartition]) -> None:
        log.warning(
            "group %s: partitions lost because this member missed its session timeout: %s; "
            "another member receives their unsettled messages",
            self.options.group,
            _listed(topic_partitions),
        )
        self._dispatcher.lose(topic_partitions)

    # Internals.

    def _configure(self, layout: TopicLayout) -> None:
        dispatcher = self._dispatcher
        dispatcher.route_with(SharedRetryRouter(self.options.group, layout, self._provisioner.retry_topic))
        if self.options.delivery == "exactly-once":
            assert self._committer is not None, "exactly-once needs a transactor"
            self._exactly_once = ExactlyOnce(dispatcher, layout, self._consumer, self._committer)
            dispatcher.settle_with(self._exactly_once)
        elif self.options.delivery == "at-most-once":
            dispatcher.settle_with(AtMostOnce(dispatcher, layout, self._producer, self._consumer))
        else:
            dispatcher.settle_with(AtLeastOnce(dispatcher, layout, self._producer))

    def _receive(self, max_count: int, timeout_s: float) -> None:
        messages: Sequence[Received] = self._consumer.poll(min(max_count, _MAX_POLL_MESSAGES), timeout_s)
        if self._bases:
            messages = [replace(message, base=self._bases.get(message.topic)) for message in messages]
        if self._stopping.is_set():
            self._dispatcher.leave_behind(messages)
        else:
            self._dispatcher.receive(messages)

    def _pause_and_resume(self) -> None:
        """Pause all partitions while full, otherwise those that are too far ahead of an unsettled message."""
        ours = self._dispatcher.topic_partitions()
        is_enough = self._limit.is_paused or self._stopping.is_set()
        wanted = ours if is_enough else self._dispatcher.far_ahead()
        # librdkafka keeps a partition paused when it is revoked and assigned again.
        paused, newly_assigned = self._paused & ours, self._newly_assigned & ours
        if to_pause := wanted - (paused - newly_assigned):
            self._consumer.pause(to_pause)
        if to_resume := (paused | newly_assigned) - wanted:
            self._consumer.resume(to_resume)
        self._paused, self._newly_assigned = wanted, set()

    def _rewind_to_committed(self) -> None:
        """After a failed transaction: deliver everything again from the committed offsets."""
        assert self._exactly_once is not None
        self._dispatcher.restart()
        if self._consumer.seek_to_committed():
            self._exactly_once.rewound()


def _listed(topic_partitions: Sequence[TopicPartition]) -> str:
    return " ".join(str(tp) for tp in topic_partitions)


CHECK_S = 0.2
"""How often a caller that waits for the end checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStatus:
    """A subscription of a client: what it was registered with, and how it is doing."""

    topics: tuple[str, ...]
    """The topics that it receives."""
    group: str
    """The consumer group."""
    tags: str | None
    """The tag expression; None: all messages."""
    concurrency: int
    """Handlers that run at the same time."""
    handler: str
    """The name of the handler, with its module."""
    is_running: bool = False
    """It was started, and has not ended."""
    is_ready: bool = False
    """It has joined its group, and a broker is reachable."""
    partitions: int = 0
    """Partitions that it owns now."""
    in_flight: int = 0
    """Messages received and not settled."""
    failure: Exception | None = None
    """Why it ended on its own."""


def status_of(options: ValidatedOptions, handler: Handler, running: Subscription | None = None) -> SubscriptionStatus:
    """`running` is the subscription while it is started."""
    registered = SubscriptionStatus(
        topics=options.topics,
        group=options.group,
        tags=options.tags,
        concurrency=options.concurrency,
        handler=handler_name(handler.function),
    )
    if running is None:
        return registered
    return replace(
        registered,
        is_running=running.is_running,
        is_ready=running.is_ready,
        partitions=len(running.topic_partitions),
        in_flight=running.in_flight,
        failure=running.failure,
    )


class Subscriptions:
    """The subscriptions of a client, started and stopped together. Each start creates them anew: a subscription runs
    once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._makers: list[Callable[[], Subscription]] = []
        self._registered: list[tuple[ValidatedOptions, Handler]] = []
        self._running: list[Subscription] = []
        """Those of the makers, in their order; empty while they are stopped."""
        self._is_started = False

    def add(self, options: ValidatedOptions, handler: Handler, make: Callable[[], Subscription]) -> None:
        """Add one; it starts at once if the others are running."""
        with self._lock:
            self._makers.append(make)
            self._registered.append((options, handler))
            if self._is_started:
                self._running.append(_started(make))

    def start(self) -> None:
        """Return at once; a second call does nothing. Raises `InvalidInputError` if there is none."""
        with self._lock:
            if not self._makers:
                raise InvalidInputError("nothing to start: call subscribe first")
            if not self._is_started:
                self._is_started = True
                self._running = [_started(make) for make in self._makers]

    def stop(self, grace_s: float) -> None:
        """Wait up to `grace_s` for running handlers."""
        with self._lock:
            running, self._running = self._running, []
            self._is_started = False
        for subscription in running:
            subscription.ask_to_stop(grace_s)
        for subscription in running:
            subscription.wait()

    def statuses(self) -> tuple[SubscriptionStatus, ...]:
        """How each is doing, in the order in which they were added."""
        with self._lock:
            running = [*self._running, *[None] * (len(self._registered) - len(self._running))]
            return tuple(
                status_of(options, handler, each)
                for (options, handler), each in zip(self._registered, running, strict=True)
            )

    def is_over(self) -> bool:
        """Whether they were stopped; raises what ended a subscription on its own."""
        with self._lock:
            for subscription in self._running:
                if subscription.failure is not None:
                    raise subscription.failure
            return not self._is_started


def _started(make: Callable[[], Subscription]) -> Subscription:
    subscription = make()
    subscription.start()
    return subscription
