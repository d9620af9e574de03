"""Where handlers run: in threads, or as tasks of an event loop.

`handler_call.py` describes a handler call as a generator of steps. A runner performs each step and sends back its
result.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.sdk.receive.in_flight import Cancellable

log = logging.getLogger(__name__)

_BACKGROUND_THREADS = 4


@dataclass(frozen=True, slots=True)
class BlockingStep:
    """A call that may block, as on a dedup store: never made on an event loop."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class HandlerStep:
    """The call of the application's handler; its result is awaited where handlers are coroutines."""

    call: Callable[[], Any]


Steps = Generator[BlockingStep | HandlerStep, Any, None]


class HandlerStoppedError(Exception):
    """Something other than an error ended a handler: a cancellation or an exit."""


class Runner(Protocol):
    """Performs the steps of handler calls, and background tasks."""

    def start(self, steps: Steps) -> Cancellable | None:
        """Return at once; the result can cancel the handler, where that is possible."""
        ...

    def background(self, task: Callable[[], None]) -> None:
        """Return at once; the task may block and must not raise."""

    def close(self) -> None:
        """Accept nothing more; running handlers continue."""


class WorkerThreads:
    """Daemon threads: a handler that never returns must not keep the process alive."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        """Calls that are queued or running."""

    def call(self, wanted: Callable[[], None]) -> None:
        with self._lock:
            self._waiting += 1
            is_new = self._threads < min(self._waiting, self._max_threads)
            if is_new:
                self._threads += 1
                number = self._threads
        self._calls.put(wanted)
        if is_new:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def close(self) -> None:
        for _ in range(self._max_threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (wanted := self._calls.get()) is not None:
            try:
                wanted()
            except Exception:
                log.exception("background work of a subscription failed")
            finally:
                with self._lock:
                    self._waiting -= 1


class ThreadRunner:
    """Runs handlers that are functions."""

    def __init__(self, name: str, concurrency: int) -> None:
        self._handlers = WorkerThreads(f"penstock-{name}", concurrency)
        self._background_tasks = WorkerThreads(f"penstock-{name}-background", _BACKGROUND_THREADS)

    def start(self, steps: Steps) -> None:
        self._handlers.call(lambda: drive(steps))

    def background(self, task: Callable[[], None]) -> None:
        self._background_tasks.call(task)

    def close(self) -> None:
        self._handlers.close()
        self._background_tasks.close()


def drive(steps: Steps) -> None:
    """Perform every step as a call."""
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                answer = step.call()
                if isinstance(step, HandlerStep) and inspect.iscoroutine(answer):
                    answer.close()
                    raise TypeError(
                        "the handler returned a coroutine, which penstock.Client cannot await: use penstock.aio.Client"
                    )
            except Exception as raised:
                error = raised
            except BaseException as raised:
                error = HandlerStoppedError(repr(raised))
                error.__cause__ = raised
    except StopIteration:
        return


async def drive_awaiting(steps: Steps, block: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
    """Await handlers; `block` performs steps that may block."""
    answer: Any = None
    error: Exception | None = None
    cancelled: asyncio.CancelledError | None = None
    try:
        while True:
            step = steps.send(answer) if error is None else steps.throw(error)
            answer, error = None, None
            try:
                answer = await (step.call() if isinstance(step, HandlerStep) else block(step.call))
            except Exception as raised:
                error = raised
            except asyncio.CancelledError as raised:
                cancelled, error = raised, HandlerStoppedError("the handler's task was cancelled")
    except StopIteration:
        if cancelled is not None:
            raise cancelled from None


class LoopRunner:
    """Runs handlers that are coroutine functions, as tasks of one event loop; blocking steps run in threads."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._background_tasks = WorkerThreads(f"penstock-{name}-background", _BACKGROUND_THREADS)

    def start(self, steps: Steps) -> Cancellable | None:
        driven = drive_awaiting(steps, self._in_thread)
        try:
            return asyncio.run_coroutine_threadsafe(driven, self._loop)
        except RuntimeError:
            # The application closed the loop without stopping the subscription: handle nothing.
            driven.close()
            return None

    def background(self, task: Callable[[], None]) -> None:
        self._background_tasks.call(task)

    def close(self) -> None:
        self._background_tasks.close()

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        done: asyncio.Future[Any] = self._loop.create_future()

        def task() -> None:
            try:
                answer = call()
            except Exception as error:
                self._report(done, None, error)
            else:
                self._report(done, answer, None)

        self._background_tasks.call(task)
        return await done

    def _report(self, done: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
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
            log.debug("the event loop was closed before its subscription was stopped")
