"""Handlers that are functions: each is called in the thread of the test, when the test wants it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.clock import ManualClock
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Reply
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.runners import Runner, Steps, drive
from penstock.sdk.receive.subscription import Subscription
from penstock.testing.core import StubCore, Turns

Answer = TypeVar("Answer")


class QueuedRunner:
    """Keeps what is to be done until `work`, so that handlers run one after the other."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def start(self, steps: Steps) -> None:
        self._queue.append(lambda: drive(steps))

    def background(self, chore: Callable[[], None]) -> None:
        self._queue.append(chore)

    def work(self) -> bool:
        """Does everything; false if there was nothing."""
        has_worked = False
        while self._queue:
            self._queue.popleft()()
            has_worked = True
        return has_worked

    def close(self) -> None:
        self._queue.clear()


class QueuedCore(StubCore):
    """Behind a `StubClient`."""

    def __init__(self, partitions: int, hooks: Sequence[Hooks], clock: ManualClock | None) -> None:
        super().__init__(partitions, hooks, clock)
        self._runner = QueuedRunner()

    def subscription(self, plan: Plan, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """The threads that the client has for it are not used."""
        return super().subscription(plan, handler, self._runner, reply)

    def take(self, turns: Turns[Answer]) -> Answer:
        """Takes the turns, and calls handlers at each."""
        try:
            next(turns)
            while True:
                turns.send(self._runner.work())
        except StopIteration as end:
            answer: Answer = end.value
            return answer
