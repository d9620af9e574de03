"""Work beside requests: loops that run as long as the broker does, and tasks that outlive the caller that waits for
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from penstock.logs import fields

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0

T = TypeVar("T")


async def run_forever(name: str, step: Callable[[], Awaitable[object]], pause_s: float = _PAUSE_S) -> NoReturn:
    """Repeats `step` until it is cancelled; after an error it is logged, and it pauses before the next attempt."""
    while True:
        try:
            await step()
        except Exception:
            logger.exception("unexpected error in a background loop; it continues", extra=fields(loop=name))
            await asyncio.sleep(pause_s)


def shielded(task: asyncio.Future[T]) -> asyncio.Future[T]:
    """Like `asyncio.shield`. An error of the task is not logged if the waiting caller went away just then."""
    outer = asyncio.shield(task)
    outer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return outer
