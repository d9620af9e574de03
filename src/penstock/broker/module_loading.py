"""Loads what most brokers come to need, soon after the start and before a client asks for it.

A broker starts without the modules of groups, transactions and metrics, so that it serves sooner. They take up to a
tenth of a second to load, and whatever loads them on the event loop holds up every client for that long. A thread gives
way to the event loop within a millisecond (`sys.setswitchinterval`).
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from pkgutil import iter_modules

from penstock.broker import handlers

logger = logging.getLogger(__name__)

_AFTER_S = 0.5
"""The first clients, which have been waiting for the start, come first."""


class ModuleLoading:
    """Loads modules once, in the background."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="penstock-module-loading")

    async def close(self) -> None:
        """Returns when the event loop has nothing more to do with it; a module that is being loaded is loaded."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        await asyncio.sleep(_AFTER_S)
        await asyncio.to_thread(self._load)

    def _load(self) -> None:
        for name in used_later():
            if self._is_stopped:
                return
            try:
                import_module(name)
            except Exception:
                logger.exception("a module cannot be loaded; requests that need it will fail")


def used_later() -> list[str]:
    """What handlers and metrics import at their first use. Where an import fails, the others are tried."""
    every_handler = [module.name for module in iter_modules(handlers.__path__, f"{handlers.__name__}.")]
    return [
        *every_handler,
        "penstock.groups.coordinator",
        "penstock.transactions.coordinator",
        "penstock.broker.metrics.exposition",
    ]
