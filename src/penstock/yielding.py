"""Long computations on the event loop that yield to other tasks at intervals.

Threads are for work that waits for the disk. A computation in a thread would still hold the interpreter lock, and for
longer at a time than one step here takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

ITEMS_PER_STEP = 16
"""How many partitions are created, assigned or closed between two yields: about a millisecond."""


async def yielding(items: Iterable[T], per_step: int = ITEMS_PER_STEP) -> AsyncIterator[T]:
    """The items, yielding to the event loop after every `per_step` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % per_step == 0:
            await asyncio.sleep(0)
