"""The console's way to one cluster: the admin API and clients for messages, whose blocking calls run in threads."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, Producer

from penstock.admin import Cluster
from penstock.clock import Clock
from penstock.console.settings import ClusterSettings, PollingSettings

T = TypeVar("T")

_CLIENT_ID = "penstock-console"


class ClusterLink:
    """One cluster. Every call of the admin API blocks: `run` calls it in a thread, a bounded number at a time."""

    def __init__(self, settings: ClusterSettings, polling: PollingSettings, clock: Clock) -> None:
        self.name = settings.name
        self.bootstrap = settings.bootstrap
        self.admin = Cluster(
            settings.bootstrap,
            timeout_s=polling.timeout_s,
            client_id=_CLIENT_ID,
            settings=dict(settings.client_settings),
        )
        self.client_settings = settings.client_settings
        self._threads = ThreadPoolExecutor(polling.threads, thread_name_prefix=f"console-{settings.name}")
        self._clock = clock
        self._ttl_ms = polling.detail_ttl_ms
        self._max_details = polling.max_details
        self._details: OrderedDict[Hashable, tuple[float, asyncio.Future[Any]]] = OrderedDict()

    async def run(self, call: Callable[[Cluster], T]) -> T:
        """One call in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, self.admin)

    async def detail(self, key: Hashable, call: Callable[[Cluster], T]) -> T:
        """The same for what viewers open: one call for all who ask within a moment."""
        held = self._details.get(key)
        now_ms = self._clock.monotonic_ms()
        if held is not None and (not held[1].done() or now_ms - held[0] < self._ttl_ms):
            found: T = await asyncio.shield(held[1])
            return found
        asked: asyncio.Future[T] = asyncio.ensure_future(self.run(call))
        asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._details[key] = (now_ms, asked)
        self._details.move_to_end(key)
        while len(self._details) > self._max_details:
            self._details.popitem(last=False)
        return await asyncio.shield(asked)

    def forget_details(self) -> None:
        """After a change, so that the user who made it sees it: a call that is under way may have asked before it."""
        self._details.clear()

    def consumer(self, **more: Any) -> Consumer:
        """A consumer for `assign`: the library demands a group name, but nothing joins or commits."""
        return Consumer(
            self._base()
            | {
                "group.id": _CLIENT_ID,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
            | more
        )

    def producer(self, **more: Any) -> Producer:
        return Producer(self._base() | more)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _base(self) -> dict[str, Any]:
        quiet = {"bootstrap.servers": self.bootstrap, "client.id": _CLIENT_ID, "log_level": 0, "error_cb": _ignore}
        return quiet | dict(self.client_settings)


def _ignore(error: object) -> None:
    """The library retries connection trouble; what matters fails the call that needed an answer."""


Fetch = Callable[[], Awaitable[T]]
