"""Where handlers run: in threads, or as tasks of an event loop.

What happens around a handler is written once, as a generator of steps (`handling.py`): each is done by the runner and
its result sent back. Only the runner knows whether a step is called or awaited.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.sdk.receive.handing import Cancellable

log = logging.getLogger(__name__)

_CHORE_THREADS = 4


@dataclass(frozen=True, slots=True)
class Blocking:
    """Something that may wait for a store: never done on an event loop."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Calling:
    """The application's handler; what it gives is awaited where handlers are coroutines."""

    call: Callable[[], Any]


Steps = Generator[Blocking | Calling, Any, None]


class HandlerStoppedError(Exception):
    """A handler has ended by something that is no error of its own: a cancellation, an exit."""


class Runner(Protocol):
    """Does the steps of jobs, and chores beside them."""

    def start(self, steps: Steps) -> Cancellable | None:
        """Returns at once; what it returns ends the handler early, where that can be done."""
        ...

    def background(self, chore: Callable[[], None]) -> None:
        """Returns at once; the chore may block, and must not raise."""

    def close(self) -> None:
        """Takes nothing more; what runs is left alone."""


class Workers:
    """Daemon threads that take calls: a handler that never returns must not keep the process from ending."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        """Calls that are queued or running."""

    def call(self, wanted: Callable[[], None]) -> None:
        with self._lock:
            self._waiting += 1
            is_new = self._threads < min(self._waiting, self._most)
            if is_new:
                self._threads += 1
                number = self._threads
        self._calls.put(wanted)
        if is_new:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def close(self) -> None:
        for _ in range(self._most):
            self._calls.put(None)

    def _work(self) -> None:
        while (wanted := self._calls.get()) is not None:
            try:
                wanted()
            except Exception:
                log.exception("a subscription's own work has failed")
            finally:
                with self._lock:
                    self._waiting -= 1


class ThreadRunner:
    """Handlers are functions."""

    def __init__(self, name: str, concurrency: int) -> None:
        self._handlers = Workers(f"penstock-{name}", concurrency)
        self._chores = Workers(f"penstock-{name}-chores", _CHORE_THREADS)

    def start(self, steps: Steps) -> None:
        self._handlers.call(lambda: drive(steps))

    def background(self, chore: Callable[[], None]) -> None:
        self._chores.call(chore)

    def close(self) -> None:
        self._handlers.close()
        self._chores.close()


def drive(steps: Steps) -> None:
    """Every step is a call."""
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                answer = step.call()
            except Exception as raised:
                error = raised
            except BaseException as raised:
                error = HandlerStoppedError(repr(raised))
    except StopIteration:
        return


async def drive_awaiting(steps: Steps, block: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    """Handlers are awaited; `block` does what may wait for a store."""
    answer: Any = None
    error: Exception | None = None
    cancelled: asyncio.CancelledError | None = None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                answer = await (step.call() if isinstance(step, Calling) else block(step.call))
            except Exception as raised:
                error = raised
            except asyncio.CancelledError as raised:
                cancelled, error = raised, HandlerStoppedError("the handler's task was cancelled")
    except StopIteration:
        if cancelled is not None:
            raise cancelled from None


class LoopRunner:
    """Handlers are coroutine functions, run as tasks of one event loop; what blocks is done in threads beside it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chores = Workers(f"penstock-{name}-chores", _CHORE_THREADS)

    def start(self, steps: Steps) -> Cancellable | None:
        driven = drive_awaiting(steps, self._in_thread)
        try:
            return asyncio.run_coroutine_threadsafe(driven, self._loop)
        except RuntimeError:
            # The loop is closed: whoever closed it without stopping the subscription wants nothing handled.
            driven.close()
            return None

    def background(self, chore: Callable[[], None]) -> None:
        self._chores.call(chore)

    def close(self) -> None:
        self._chores.close()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        done: asyncio.Future[Any] = self._loop.create_future()

        def chore() -> None:
            try:
                answer = call()
            except Exception as error:
                self._tell(done, None, error)
            else:
                self._tell(done, answer, None)

        self._chores.call(chore)
        return await done

    def _tell(self, done: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
        def set_it() -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(answer)
            else:
                done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(set_it)
        except RuntimeError:
            log.debug("an event loop was closed before its subscription was stopped")
