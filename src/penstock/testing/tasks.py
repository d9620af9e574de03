"""Handlers that are coroutines: each is a task of the test's own event loop, and time stands still while it runs.

Whoever takes turns (`run`, `advance`, `request`) goes on when every handler has ended or takes turns itself; of those
who then could, the one that lets time pass least, so that nobody misses the moment that he waits for.
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
from penstock.sdk.hooks import Hooks
from penstock.sdk.message import Reply
from penstock.sdk.receive.handing import Cancellable
from penstock.sdk.receive.handling import Handler
from penstock.sdk.receive.plan import Plan
from penstock.sdk.receive.runners import Runner, Steps, drive_awaiting
from penstock.sdk.receive.subscription import Subscription
from penstock.testing.core import NOW_MS, StubCore, Turns

Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class Call:
    """A handler that runs."""

    turns: int = 0
    """How many take turns inside it."""


@dataclass(eq=False, slots=True)
class Taker:
    """Somebody who takes turns."""

    until_ms: int = NOW_MS
    """So long it lets time pass."""


_INSIDE: ContextVar[Call | None] = ContextVar("penstock_stub_call", default=None)
"""In whose handler this is, also in the tasks that a handler starts."""


class TaskRunner:
    """All handlers of a stub, and whoever waits for them. One event loop calls everything."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._chores: deque[Callable[[], None]] = deque()
        self._takers: list[Taker] = []
        """The last first."""
        self._stirs = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: BaseException | None = None
        """What has ended a handler's task and is no error of the handler."""

    # What subscriptions ask.

    def start(self, steps: Steps) -> Cancellable:
        call = Call()
        self._calls.add(call)
        task = asyncio.get_running_loop().create_task(self._run(call, steps))
        task.add_done_callback(lambda done: self._ended(call, done))
        return task

    def background(self, chore: Callable[[], None]) -> None:
        self._chores.append(chore)
        self.stir()

    def close(self) -> None:
        self._chores.clear()

    # What those ask who take turns.

    def stir(self) -> None:
        """Something has happened: whoever waits looks again."""
        self._stirs += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @contextmanager
    def taking(self) -> Iterator[Taker]:
        """Somebody takes turns; a handler in which this is does not run meanwhile."""
        taker, call = Taker(), _INSIDE.get()
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

    async def turn(self, taker: Taker) -> bool:
        """Lets handlers run until something has happened; false if nothing has, nor can while time stands still."""
        before = self._stirs
        while self._chores:
            self._chores.popleft()()
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

    async def _run(self, call: Call, steps: Steps) -> None:
        _INSIDE.set(call)
        await drive_awaiting(steps, _at_once)

    def _ended(self, call: Call, task: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
        self.stir()


class TaskCore(StubCore):
    """Behind an `AsyncStubClient`."""

    def __init__(self, partitions: int, hooks: Sequence[Hooks], clock: ManualClock | None) -> None:
        self.runner = TaskRunner()
        super().__init__(partitions, hooks, clock, on_put=self.runner.stir)

    def subscription(self, plan: Plan, handler: Handler, runner: Runner, reply: Reply) -> Subscription:
        subscription = super().subscription(plan, handler, runner, reply)
        self.runner.stir()
        return subscription

    async def take(self, turns: Turns[Answer]) -> Answer:
        """Takes the turns, and lets handlers run at each."""
        with self.runner.taking() as taker:
            try:
                taker.until_ms = next(turns)
                while True:
                    taker.until_ms = turns.send(await self.runner.turn(taker))
            except StopIteration as end:
                answer: Answer = end.value
                return answer

    async def quiet(self) -> None:
        """Waits for the handlers that run; no more of them are called by this."""
        with self.runner.taking() as taker:
            while await self.runner.turn(taker):
                pass


async def _at_once(call: Callable[[], Any]) -> Any:
    """What may wait for a store; in a test it may do so on the loop."""
    return call()
