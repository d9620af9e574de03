"""Runs a coroutine at once, and makes a task of it only if it has to wait.

Most requests never wait. A task for each would cost more than the request itself, and would run one turn of the event
loop later.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], then: Callable[[T], None] | None = None
) -> T | asyncio.Task[T]:
    """The result of `work` if it can be had without waiting, else a task that carries on with it. `then` is called with
    the result of the task where the task ends: a callback of the task would be called a turn of the event loop later.

    Until its first wait the work runs outside any task: it must not ask for the current one (`asyncio.timeout` does).
    """
    try:
        waiting_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    resumed = _resumed(work, waiting_for, then)
    resumed.send(None)
    return loop.create_task(resumed)


async def _resumed(work: Coroutine[Any, Any, T], waiting_for: Any, then: Callable[[T], None] | None) -> T:
    """A coroutine, because asyncio makes no task of a generator from Python 3.12 on."""
    result = await _carry_on(work, waiting_for)
    if then is not None:
        then(result)
    return result


@types.coroutine
def _carry_on(work: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Hands what `work` waits for to the task around it, then lets the task drive `work`."""
    result: T
    is_begun = False
    while True:
        try:
            if not is_begun:
                # `start` runs this up to here, so that a task that is cancelled before its first step cancels `work`:
                # an error that is thrown into a coroutine that has not begun never gets inside.
                is_begun = True
                yield None
            yield waiting_for
        except BaseException as error:
            try:
                waiting_for = work.throw(error)
            except StopIteration as done:
                result = done.value
                break
        else:
            # `await` would refuse a coroutine that has begun.
            result = yield from work
            break
    return result
