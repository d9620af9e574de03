"""Runs handlers that are functions, in the thread of the test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.clock import ManualClock
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Reply
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_runners import Runner, Steps, drive
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.testing.stub_core import Raises, StubCore, Turns

Answer = TypeVar("Answer")


class SyncRunner:
    """Queues calls until `work`, so that handlers run one after the other."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()

    def start(self, steps: Steps) -> None:
        self._queue.append(lambda: drive(steps))

    def background(self, task: Callable[[], None]) -> None:
        self._queue.append(task)

    def work(self) -> bool:
        """Make all queued calls; False if there were none."""
        has_worked = False
        while self._queue:
            self._queue.popleft()()
            has_worked = True
        return has_worked

    def close(self) -> None:
        self._queue.clear()


class SyncStubCore(StubCore):
    """The core of a `StubClient`."""

    def __init__(
        self, partitions: int, hooks: Sequence[Hooks], clock: ManualClock | None, raises: Raises = AssertionError
    ) -> None:
        super().__init__(partitions, hooks, clock, raises=raises)
        self._runner = SyncRunner()

    def subscription(self, options: ValidatedOptions, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        """Ignores the threads that the client provides."""
        return super().subscription(options, handler, self._runner, reply)

    def take(self, turns: Turns[Answer]) -> Answer:
        """Run a generator of turns, and call handlers at each."""
        try:
            next(turns)
            while True:
                has_worked = self._runner.work()
                self.raise_failure()
                turns.send(has_worked)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
