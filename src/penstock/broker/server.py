"""A broker as a process: one event loop, started, run until SIGTERM or SIGINT, stopped cleanly."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any

import uvloop

from penstock.broker.broker import Broker
from penstock.broker.module_loading import ModuleLoading
from penstock.broker.service_manager import ServiceManager
from penstock.config.loader import Loaded
from penstock.errors import StorageError
from penstock.gc_freeze import freezing
from penstock.logs import fields

logger = logging.getLogger(__name__)


def serve(loaded: Loaded, on_ready: Callable[[str, str], None], service_manager: ServiceManager) -> int:
    """Runs a broker until SIGTERM or SIGINT; returns the exit status. ConfigError if it cannot start."""
    # Compaction and look-ups run Python in threads: they may keep the event loop waiting this long, not 5 ms.
    sys.setswitchinterval(0.001)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(loaded, on_ready, service_manager))
    return 0


async def _run(loaded: Loaded, on_ready: Callable[[str, str], None], service_manager: ServiceManager) -> None:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _tell, stop, number.name)
    broker = Broker(loaded, on_loop_turn=service_manager.alive)
    loop.add_signal_handler(signal.SIGHUP, broker.reload)
    with freezing():
        is_started = await _is_started(broker, stop)
    if not is_started:
        logger.info("stopped before the broker was ready", extra=fields(signal=stop.result()))
        return
    on_ready(str(broker.kafka_address), str(broker.http_address))
    service_manager.ready(f"serving Kafka clients on {broker.kafka_address}")
    loading = ModuleLoading()
    loading.start()
    try:
        reason = await stop
        logger.info("stopping", extra=fields(signal=reason))
        service_manager.stopping()
    finally:
        await loading.close()
        await broker.close()
    logger.info("stopped")


async def _is_started(broker: Broker, stop: asyncio.Future[str]) -> bool:
    """False if it was told to stop before: a broker that starts may have to wait for the rest of the cluster."""
    starting = asyncio.create_task(broker.start(), name="penstock-start")
    either: list[asyncio.Future[Any]] = [starting, stop]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            try:
                starting.result()
            except OSError as error:
                raise StorageError(f"the broker cannot start: {error}") from error
            return True
    finally:
        starting.cancel()
    await asyncio.wait([starting])
    return False


def _tell(stop: asyncio.Future[str], reason: str) -> None:
    if not stop.done():
        stop.set_result(reason)
