"""A subscription: the thread that polls, and what it tells the engine.

The thread never stops polling as long as the subscription runs, whatever handlers do: partitions are paused when enough
is in hand, so long work never costs the membership. Everything that touches the inbox is done in this thread.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from penstock.clock import Clock, SystemClock
from penstock.ids import TopicPartition
from penstock.logs import fields
from penstock.sdk.errors import ClientError
from penstock.sdk.hooks import HookChain, Hooks
from penstock.sdk.message import Reply
from penstock.sdk.names import view_of
from penstock.sdk.ports import Inbox, Outbox, Received
from penstock.sdk.receive.endings import Beforehand, OneByOne
from penstock.sdk.receive.engine import Engine
from penstock.sdk.receive.forwarding import Layout
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.pace import Gate, Wanted
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.rounds import Rounds, Transactor
from penstock.sdk.receive.runners import Runner

log = logging.getLogger(__name__)

POLL_S = 0.05
_MOST_A_POLL = 500
HANDOVER_S = 3.0
"""When a partition is given away, what is being handled of it is waited for so long."""
GRACE_S = 30.0
_PREPARE_AGAIN_S = 1.0


class Preparation(Protocol):
    """Makes what a subscription needs in the cluster."""

    def prepare(self, plan: Plan) -> Layout:
        """Raises ClientError if the cluster is away, or refuses."""
        ...


class Subscription:
    """Runs from `start` to `stop`, once."""

    def __init__(
        self,
        plan: Plan,
        handler: Handler,
        *,
        preparation: Preparation,
        inbox: Inbox,
        outbox: Outbox,
        runner: Runner,
        transactor: Transactor | None = None,
        hooks: Hooks | None = None,
        reply: Reply | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`outbox` takes retries and dead letters: its success must mean that they are with the cluster.

        `transactor` is needed for exactly-once.
        """
        self.plan = plan
        self._preparation = preparation
        self._inbox = inbox
        self._outbox = outbox
        self._runner = runner
        self._transactor = transactor
        self._clock = clock or SystemClock()
        self._engine = Engine(
            plan, handler, runner, hooks=hooks or HookChain(), clock=self._clock, reply=reply, chance=chance
        )
        self._gate = Gate(plan.in_flight)
        self._bases = {} if plan.tags is None else {view_of(topic, plan.tags): topic for topic in plan.topics}
        self._rounds: Rounds | None = None
        self._paused: set[TopicPartition] = set()
        self._fresh: set[TopicPartition] = set()
        """Assigned, and not looked at yet."""
        self._stopping = threading.Event()
        self._grace_ends_ms: float | None = None
        self._is_joined = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-{plan.group}", daemon=True)
        self.failure: Exception | None = None
        """Why it ended by itself; nothing but a mistake of ours can make it."""

    def start(self) -> None:
        """Returns at once. The topics that it needs are made, and the group is joined, as soon as the cluster is
        there.
        """
        self._thread.start()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Calls no more handlers, waits so long for those that run, gives back the rest and leaves the group."""
        self.ask_to_stop(grace_s)
        self.wait()

    def ask_to_stop(self, grace_s: float = GRACE_S) -> None:
        """The same, without waiting for it."""
        self._grace_ends_ms = self._clock.monotonic_ms() + grace_s * 1000
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for its end; whether it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def places(self) -> set[TopicPartition]:
        """The partitions that it has now."""
        return self._engine.places()

    @property
    def in_hand(self) -> int:
        """Messages received and not settled."""
        return self._engine.in_hand

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self.join():
                self._stopping.wait(_PREPARE_AGAIN_S)
            while not self.is_over():
                self.step(POLL_S)
        except Exception as error:
            self.failure = error
            log.exception("a subscription has ended by a mistake of its own", extra=fields(group=self.plan.group))
        finally:
            self.leave()

    # The steps of the thread; a stub without threads takes them itself.

    def join(self) -> bool:
        """Makes what is missing and joins the group; false if that cannot be done yet."""
        plan = self.plan
        try:
            layout = self._preparation.prepare(plan)
            from_end = () if plan.from_beginning else layout.topics
            self._use(layout)
            self._inbox.join([*layout.topics, layout.retry], self, from_end=from_end)
        except ClientError as error:
            log.warning("a subscription cannot begin yet", extra=fields(group=plan.group, error=error))
            return False
        self._is_joined = True
        return True

    def step(self, patience_s: float) -> None:
        """Waits so long for messages, and does what is due."""
        if self._stopping.is_set():
            self._engine.drain()
        self._engine.tick()
        wanted = self._gate.decide(self._engine.in_hand, self._clock.monotonic_ms())
        if wanted is Wanted.WAIT and not self._engine.needs_polling:
            self._engine.wait_for_room(self._gate.in_flight, self._engine.sleep_s(patience_s))
            return
        self._pause_and_resume()
        self._receive(max(1, self._gate.room(self._engine.in_hand)), self._engine.sleep_s(patience_s))
        if self._rounds is not None and self._rounds.wants_rewind:
            self._rewind()
        if self.plan.delivery == "at-least-once" and (positions := self._engine.positions(self._inbox.position)):
            self._inbox.settled(positions)

    def is_over(self) -> bool:
        if not self._stopping.is_set():
            return False
        assert self._grace_ends_ms is not None
        return self._engine.is_idle or self._clock.monotonic_ms() >= self._grace_ends_ms

    def leave(self) -> None:
        """Commits what is settled, and leaves the group."""
        try:
            self._inbox.close()
        finally:
            self._runner.close()
            if self._transactor is not None:
                self._transactor.close()

    # What the inbox tells, inside `poll` and `close`.

    def assigned(self, places: Sequence[TopicPartition]) -> None:
        log.info("partitions assigned", extra=fields(group=self.plan.group, places=_text(places)))
        self._engine.assign(places)
        self._fresh.update(places)

    def revoked(self, places: Sequence[TopicPartition]) -> None:
        log.info("partitions revoked", extra=fields(group=self.plan.group, places=_text(places)))
        patience_s = 0.0 if self._stopping.is_set() else HANDOVER_S
        positions = self._engine.take_leave(places, patience_s)
        if self.plan.delivery == "at-least-once":
            self._inbox.settled(positions)

    def lost(self, places: Sequence[TopicPartition]) -> None:
        log.warning("partitions lost", extra=fields(group=self.plan.group, places=_text(places)))
        self._engine.lose(places)

    # Inside.

    def _use(self, layout: Layout) -> None:
        engine = self._engine
        if self.plan.delivery == "exactly-once":
            assert self._transactor is not None, "exactly-once needs a transactor"
            self._rounds = Rounds(engine, layout, self._inbox, self._transactor)
            engine.end_with(self._rounds)
        elif self.plan.delivery == "at-most-once":
            engine.end_with(Beforehand(engine, layout, self._outbox, self._inbox))
        else:
            engine.end_with(OneByOne(engine, layout, self._outbox))

    def _receive(self, most: int, patience_s: float) -> None:
        messages: Sequence[Received] = self._inbox.poll(min(most, _MOST_A_POLL), patience_s)
        if self._bases:
            messages = [replace(message, base=self._bases.get(message.topic)) for message in messages]
        if not self._stopping.is_set():
            self._engine.receive(messages)

    def _pause_and_resume(self) -> None:
        """Everything while enough is in hand, else the partitions that have run far ahead of a message."""
        ours = self._engine.places()
        is_enough = self._gate.is_paused or self._stopping.is_set()
        wanted = ours if is_enough else self._engine.far_ahead()
        # A partition that was paused when it was taken away is still paused when it comes back.
        paused, fresh = self._paused & ours, self._fresh & ours
        if to_pause := wanted - (paused - fresh):
            self._inbox.pause(to_pause)
        if to_resume := (paused | fresh) - wanted:
            self._inbox.resume(to_resume)
        self._paused, self._fresh = wanted, set()

    def _rewind(self) -> None:
        """A transaction has not been committed: everything comes again from what is."""
        assert self._rounds is not None
        self._engine.start_over()
        if self._inbox.rewind():
            self._rounds.rewound()


def _text(places: Sequence[TopicPartition]) -> str:
    return " ".join(str(place) for place in places)
