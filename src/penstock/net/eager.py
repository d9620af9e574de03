"""Running a coroutine at once, and making a task of it only if it has to wait.

Most requests never wait. A task for each would cost more than the request itself, and would run it one turn of the
event loop later.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """The result of `work` if it can be had without waiting, else a task that carries on with it.

    Until its first wait the work runs outside any task: it must not ask for the current one (`asyncio.timeout` does).
    """
    try:
        waiting_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return loop.create_task(_carry_on(work, waiting_for))


@types.coroutine
def _carry_on(work: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Hands what `work` waits for to the task around it, and what comes back to `work`."""
    while True:
        try:
            value = yield waiting_for
        except BaseException as error:
            step = _thrower(work, error)
        else:
            step = _sender(work, value)
        done, outcome = step
        if done:
            result: T = outcome
            return result
        waiting_for = outcome


def _sender(work: Coroutine[Any, Any, T], value: Any) -> tuple[bool, Any]:
    try:
        return False, work.send(value)
    except StopIteration as done:
        return True, done.value


def _thrower(work: Coroutine[Any, Any, T], error: BaseException) -> tuple[bool, Any]:
    try:
        return False, work.throw(error)
    except StopIteration as done:
        return True, done.value
