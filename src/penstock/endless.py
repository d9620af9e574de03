"""Loops that must not end as long as the broker runs: an error that nobody expected is told, and the loop goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from penstock.logs import fields

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0


async def endless(name: str, step: Callable[[], Awaitable[object]], pause_s: float = _PAUSE_S) -> NoReturn:
    """Does the step again and again, until it is cancelled; after an error, not before some time has passed."""
    while True:
        try:
            await step()
        except Exception:
            logger.exception("a loop met an error that it did not expect, and goes on", extra=fields(loop=name))
            await asyncio.sleep(pause_s)
