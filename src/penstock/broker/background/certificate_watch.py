"""Reads certificates again when their files change, so that a renewed one is used without a restart."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import ConfigError
from penstock.logs import fields
from penstock.net.tls import TlsContexts

logger = logging.getLogger(__name__)

_LOOK_S = 5.0


class CertificateWatch:
    """Looks at the files every few seconds; `close` ends it."""

    def __init__(self, contexts: TlsContexts) -> None:
        self._contexts = contexts
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="certificate watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            reload_certificates(self._contexts)


def reload_certificates(contexts: TlsContexts, *, is_forced: bool = False) -> None:
    """Certificates that cannot be used are logged, and the broker goes on with those that it has."""
    try:
        if contexts.reload(is_forced=is_forced):
            logger.info("certificates were read again; new connections use them")
    except ConfigError as error:
        logger.error("certificates cannot be read again; the old ones stay in use", extra=fields(reason=str(error)))
