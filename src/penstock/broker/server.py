"""A broker as a process: one event loop, started, run until SIGTERM or SIGINT, stopped cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

import uvloop

from penstock.broker.broker import Broker
from penstock.config.loader import Loaded
from penstock.logs import fields

logger = logging.getLogger(__name__)


def serve(loaded: Loaded, on_ready: Callable[[str, str], None]) -> int:
    """Runs a broker until it is told to stop; gives the exit status. ConfigError if it cannot start."""
    # Compaction and look-ups run Python in threads: they may keep the event loop waiting this long, not 5 ms.
    sys.setswitchinterval(0.001)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(loaded, on_ready))
    return 0


async def _run(loaded: Loaded, on_ready: Callable[[str, str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _tell, stop, number.name)
    broker = Broker(loaded)
    await broker.start()
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.freeze()
    on_ready(str(broker.kafka_address), str(broker.http_address))
    try:
        reason = await stop
        logger.info("stopping", extra=fields(signal=reason))
    finally:
        await broker.close()
    logger.info("stopped")


def _tell(stop: asyncio.Future[str], reason: str) -> None:
    if not stop.done():
        stop.set_result(reason)
