"""Health and metrics of a worker over HTTP, in a thread of its own: it answers whatever the application does.

The metrics are those of the registry in which the client counts: the client's own `PrometheusHooks` decide, otherwise
the worker adds some that count in the global registry, where applications keep their own metrics.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from penstock.cli.failure import CommandError
from penstock.cli.worker.application import WorkerClient
from penstock.config.address import Address
from penstock.net.http_server import HttpServer
from penstock.sdk.hooks.prometheus import PrometheusHooks


def counted_registry(client: WorkerClient) -> CollectorRegistry:
    """The registry with the metrics of the client. Raises `CommandError`."""
    for hook in client.hooks:
        if isinstance(hook, PrometheusHooks):
            return hook.registry
    try:
        client.add_hooks(PrometheusHooks())
    except ValueError:
        raise CommandError(
            "another client of the application has the metrics penstock_client_...: pass the same PrometheusHooks to "
            "both (hooks=[...]), so that this one is counted too; nothing was started"
        ) from None
    return REGISTRY


class WorkerMonitoring:
    """Serves /metrics, /health and /ready until it is closed."""

    def __init__(self, address: Address, client: WorkerClient, is_stopping: Callable[[], bool]) -> None:
        self._address = address
        self._client = client
        self._is_stopping = is_stopping
        self._registry = counted_registry(client)
        self._close: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="penstock-worker-http", daemon=True)
        self._started: Future[Address] = Future()

    def start(self) -> Address:
        """Listen; returns the address in use. Raises `ConfigError`."""
        self._thread.start()
        return self._started.result()

    def close(self) -> None:
        self._close()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = HttpServer(*self._address, self._metrics, self._health, self._ready, setting="--http")
        loop, closed = asyncio.get_running_loop(), asyncio.Event()
        try:
            address = await server.start()
        except Exception as error:
            self._started.set_exception(error)
            return
        self._close = lambda: _tell(loop, closed)
        self._started.set_result(address)
        await closed.wait()
        await server.close()

    async def _metrics(self) -> bytes:
        return generate_latest(self._registry)

    def _health(self) -> tuple[bool, Mapping[str, Any]]:
        """Well unless a subscription has ended on its own."""
        return not any(each.failure for each in self._client.subscriptions), self._details()

    def _ready(self) -> tuple[bool, Mapping[str, Any]]:
        is_ready = all(each.is_ready for each in self._client.subscriptions) and not self._is_stopping()
        return is_ready, self._details()

    def _details(self) -> Mapping[str, Any]:
        return {
            "is_stopping": self._is_stopping(),
            "subscriptions": [
                {
                    "topics": each.topics,
                    "group": each.group,
                    "is_ready": each.is_ready,
                    "partitions": each.partitions,
                    "in_flight": each.in_flight,
                }
                for each in self._client.subscriptions
            ],
        }


def _tell(loop: asyncio.AbstractEventLoop, closed: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(closed.set)
