"""What stands behind a stub in place of a cluster: topics, groups and a clock, and subscriptions that take steps.

What a test sets going is written once, as a generator of turns. At each it says until when it lets time pass, handlers
run, and whether any did is sent back. Whether they are called or awaited is known to whoever takes the turns
(`queued.py`, `tasks.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from penstock.clock import ManualClock
from penstock.sdk.counters import Counters, Tally
from penstock.sdk.errors import ClosedError, InvalidInputError, NoReplyError
from penstock.sdk.headers import CORRELATION, REPLY_TO, value_of
from penstock.sdk.hooks import HookChain, Hooks
from penstock.sdk.message import Reply
from penstock.sdk.ports import Outgoing, Receipt, Received
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.preparing import KafkaPreparation
from penstock.sdk.receive.runners import Runner
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.send.requests import REPLY_TOPIC
from penstock.sdk.send.watching import Watch, WatchedOutbox
from penstock.sdk.topics import Topics
from penstock.sdk.waiting import WaitingMessage, Wanted
from penstock.testing.groups import MemoryGroups
from penstock.testing.inbox import StubInbox
from penstock.testing.outbox import StubOutbox, StubTransaction, StubTransactor
from penstock.testing.topics import MemoryTopics

_GATE_STEP_MS = 1
"""While a subscription waits for room before it pauses, it does not say for how long."""


Answer = TypeVar("Answer")
Turns = Generator[int, bool, Answer]

NOW_MS = 0
"""Said by who lets no time pass, or none any more."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A subscription without a thread: it does what is due when it is told to."""

    subscription: Subscription
    inbox: StubInbox

    def receive(self) -> bool:
        """What has come goes to its runner; false if nothing has."""
        given = self.inbox.given
        self.subscription.step(0.0)
        return self.inbox.given != given

    def sleep_ms(self, most_ms: int) -> int:
        """How long it has nothing to do, at most so long; asked when there is nothing to do now."""
        polls = self.inbox.polls
        self.subscription.step(0.0)
        if self.inbox.polls == polls:
            return min(_GATE_STEP_MS, most_ms)
        # What it would wait, it says by asking for messages: it does not wait here.
        self.subscription.step(most_ms / 1000)
        return min(most_ms, max(1, math.ceil(self.inbox.patience_s * 1000)))

    def drain(self) -> None:
        """No more handlers are called."""
        self.subscription.ask_to_stop(0.0)
        self.subscription.step(0.0)


class StubCore:
    """Has the methods of the SDK's `Core`."""

    room_s = 0.0

    def __init__(
        self,
        partitions: int,
        hooks: Sequence[Hooks],
        clock: ManualClock | None,
        on_put: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_put` is called when something was sent."""
        if partitions < 1:
            raise InvalidInputError(f"partitions is {partitions}: it is 1 or more")
        self.clock = clock or ManualClock()
        self.topics = MemoryTopics(partitions)
        self.groups = MemoryGroups(self.topics)
        self.stepped: list[Stepped] = []
        self._hooks = HookChain(hooks)
        self._tally = Tally()
        self._watch = Watch(self._hooks, self._tally, self.clock)
        self._outbox = StubOutbox(self.topics, self.clock, on_put)
        self._watched = WatchedOutbox(self._outbox, self._watch)
        self._requests = 0
        self._is_closed = False

    @property
    def transactions(self) -> StubCore:
        return self

    @contextmanager
    def transaction(self, transactional_id: str | None = None) -> Iterator[StubTransaction]:
        """Commits when the block ends, aborts when it raises."""
        if transactional_id == "":
            raise InvalidInputError("transactional_id is empty")
        self._check_open()
        transaction = StubTransaction(self._outbox, self._watch)
        try:
            yield transaction
        except BaseException:
            transaction.abort()
            raise
        transaction.commit()

    @property
    def counters(self) -> Counters:
        return self._tally.counters(0, 0)

    def has_room_for(self, outgoing: Outgoing) -> bool:
        return True

    def send(self, outgoing: Outgoing, room_s: float = 0.0) -> Future[Receipt]:
        self._check_open()
        return self._watched.send_soon(outgoing)

    def each_partition(self, outgoing: Outgoing) -> list[Outgoing]:
        if outgoing.partition is not None or outgoing.key is not None:
            return [outgoing]
        return [replace(outgoing, partition=number) for number in range(self.topics.partitions(outgoing.topic))]

    def waiting(self, wanted: Wanted) -> list[WaitingMessage]:
        """What waits for its time."""
        found = [
            WaitingMessage(*each.place, each.due_ms, each.outgoing.value, each.outgoing.key, each.outgoing.headers)
            for each in self.topics.pending(wanted.topic)
            if wanted.partition in (None, each.place[1])
        ]
        if wanted.timer_id is not None:
            return [each for each in found if each.timer_id == wanted.timer_id]
        until_ms = math.inf if wanted.until_ms is None else wanted.until_ms
        return [each for each in found if wanted.from_ms <= each.due_ms < until_ms][: wanted.limit]

    def subscription(self, plan: Plan, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """A subscription that is a member of its group from now on; it is given something at the next turn."""
        self._check_open()
        for topic in plan.topics:
            self.topics.make(topic)
        inbox = StubInbox(plan.group, self.topics, self.groups)
        subscription = Subscription(
            plan,
            handler,
            preparation=KafkaPreparation(cast("Topics", self.topics)),
            inbox=inbox,
            outbox=self._watched,
            runner=runner,
            transactor=StubTransactor(self._outbox, self._watch, self.groups, plan.group),
            hooks=self._hooks,
            reply=reply,
            clock=self.clock,
            chance=_no_chance,
        )
        subscription.join()
        self.stepped.append(Stepped(subscription, inbox))
        return subscription

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> None:
        self._is_closed = True

    def working(self, until_ms: Callable[[], int] = lambda: NOW_MS) -> Turns[None]:
        """Everything that is due now, and all that follows from it."""
        is_busy = True
        while is_busy:
            is_busy = self.topics.fire(self.clock.now_ms())
            for each in list(self.stepped):
                is_busy = each.receive() or is_busy
            is_busy = (yield until_ms()) or is_busy

    def passing(self, seconds: float, is_enough: Callable[[], bool] = lambda: False) -> Turns[None]:
        """So much time passes, from one moment at which something is due to the next."""
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
        """A request, and time passes until its answer has come."""
        look = self._ask(outgoing)
        yield from self.passing(timeout_s, lambda: look() is not None)
        answer = look()
        if answer is None:
            raise NoReplyError(f"no answer to a request to {outgoing.topic} has come within {timeout_s:g} s")
        return answer

    def _ask(self, outgoing: Outgoing) -> Callable[[], Received | None]:
        """Sends a request; what is returned looks whether its answer has come."""
        self.topics.make(REPLY_TOPIC, 1)
        self._requests += 1
        start, correlation = self.topics.end_offset(REPLY_TOPIC, 0), f"stub-{self._requests}".encode()
        marks = ((REPLY_TO, f"{REPLY_TOPIC}/0".encode()), (CORRELATION, correlation))
        self.send(replace(outgoing, headers=(*outgoing.headers, *marks))).result()

        def look() -> Received | None:
            replies, _ = self.topics.read(REPLY_TOPIC, 0, start, self.topics.end_offset(REPLY_TOPIC, 0))
            return next((each for each in replies if value_of(each.headers, CORRELATION) == correlation), None)

        return look

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client was closed")


def _no_chance() -> float:
    """The middle of the range: retries come exactly when their delays say."""
    return 0.5
