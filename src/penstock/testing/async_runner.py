"""Runs handlers that are coroutines, as tasks of the test's event loop. Time stands still while a handler runs.

`run`, `advance` and `request` take turns. One of them continues when every handler has ended or takes turns itself; of
several, the one that lets time pass least, so that none misses the moment it waits for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.clock import ManualClock
from penstock.sdk.hooks.base import Hooks
from penstock.sdk.message import Reply
from penstock.sdk.receive.handler_call import Handler
from penstock.sdk.receive.handler_runners import Runner, Steps, drive_awaiting
from penstock.sdk.receive.in_flight import Cancellable
from penstock.sdk.receive.subscription import Subscription
from penstock.sdk.receive.subscription_options import ValidatedOptions
from penstock.testing.stub_core import NOW_MS, Raises, StubCore, Turns

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class RunningHandler:
    """A handler that runs."""

    turns: int = 0
    """How many calls inside it take turns."""


@dataclass(eq=False, slots=True)
class TurnTaker:
    """A call of `run`, `advance` or `request`."""

    until_ms: int = NOW_MS
    """Until when it lets time pass."""


_INSIDE: ContextVar[RunningHandler | None] = ContextVar("penstock_stub_call", default=None)
"""The handler that the current code runs in, also in tasks that a handler starts."""


class AsyncRunner:
    """All handlers of a stub, and the calls that wait for them. One event loop calls everything."""

    def __init__(self) -> None:
        self._calls: set[RunningHandler] = set()
        self._background_tasks: deque[Callable[[], None]] = deque()
        self._takers: list[TurnTaker] = []
        """The latest first."""
        self._stirs = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: BaseException | None = None
        """What ended a handler's task and is not an error of the handler."""

    # Called by subscriptions.

    def start(self, steps: Steps) -> Cancellable:
        call = RunningHandler()
        self._calls.add(call)
        task = asyncio.get_running_loop().create_task(self._run(call, steps))
        task.add_done_callback(lambda done: self._ended(call, done))
        return task

    def background(self, task: Callable[[], None]) -> None:
        self._background_tasks.append(task)
        self.stir()

    def close(self) -> None:
        self._background_tasks.clear()

    # Called by the tasks that take turns.

    def stir(self) -> None:
        """Something has happened: waiting calls look again."""
        self._stirs += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @contextmanager
    def taking(self) -> Iterator[TurnTaker]:
        """Take turns; a handler around it does not run meanwhile."""
        taker, call = TurnTaker(), _INSIDE.get()
        self._takers.insert(0, taker)
        if call is not None:
            call.turns += 1
        self.stir()
        try:
            yield taker
        finally:
            self._takers.remove(taker)
            if call is not None:
                call.turns -= 1
            self.stir()

    async def turn(self, taker: TurnTaker) -> bool:
        """Let handlers run until something has happened; False if nothing has, nor can while time stands still."""
        before = self._stirs
        while self._background_tasks:
            self._background_tasks.popleft()()
        await asyncio.sleep(0)
        while self._stirs == before:
            if all(call.turns for call in self._calls) and taker is min(self._takers, key=lambda each: each.until_ms):
                return False
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return True

    async def _run(self, call: RunningHandler, steps: Steps) -> None:
        _INSIDE.set(call)
        await drive_awaiting(steps, _at_once)

    def _ended(self, call: RunningHandler, task: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        self.stir()


class AsyncStubCore(StubCore):
    """The core of an `AsyncStubClient`."""

    def __init__(
        self, partitions: int, hooks: Sequence[Hooks], clock: ManualClock | None, raises: Raises = AssertionError
    ) -> None:
        self.runner = AsyncRunner()
        super().__init__(partitions, hooks, clock, on_put=self.runner.stir, raises=raises)

    def subscription(self, options: ValidatedOptions, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        subscription = super().subscription(options, handler, runner, reply)
        self.runner.stir()
        return subscription

    async def take(self, turns: Turns[Answer]) -> Answer:
        """Run a generator of turns, and let handlers run at each."""
        with self.runner.taking() as taker:
            try:
                taker.until_ms = next(turns)
                while True:
                    has_worked = await self.runner.turn(taker)
                    self.raise_failure()
                    taker.until_ms = turns.send(has_worked)
            except StopIteration as end:
                answer: Answer = end.value
                return answer

    async def quiet(self) -> None:
        """Wait for running handlers; call no more."""
        with self.runner.taking() as taker:
            while await self.runner.turn(taker):
                pass


async def _at_once(call: Callable[[], Any]) -> Any:
    """Make a call that may wait for a store; in a test it may do so on the loop."""
    return call()
