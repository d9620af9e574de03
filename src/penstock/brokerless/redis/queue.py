"""Redis as a client opens it: the store, and the maintenance beside it."""

from __future__ import annotations

import logging
import threading
import uuid

from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.redis.store import MAX_DELAYED, RedisStore
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS
from penstock.clock import SystemClock
from penstock.sdk.errors import ClientError
from penstock.sdk.problem_log import OngoingProblem

log = logging.getLogger(__name__)

LEASE_MS = 3_000
_RENEW_MS = 1_000
_IDLE_MS = 50
"""How late a message may be that another client has just added."""
_TRIM_MS = 5_000
_RETRY_MS = 500


class RedisMaintenance:
    """Delivers what is due and trims, in a thread of its own, while it has the lease. The lease only saves work: each
    script is right whoever calls it, and however often.
    """

    def __init__(self, store: RedisStore, *, trims_acknowledged: bool) -> None:
        self._store = store
        self._trims_acknowledged = trims_acknowledged
        self._clock = SystemClock()
        self._owner = uuid.uuid4().hex
        self._renew_at_ms = self._trim_at_ms = float("-inf")
        self._has_lease = False
        self._is_closing = False
        self._problem = OngoingProblem(
            log,
            f"{store.address}: could not deliver delayed messages; trying again",
            f"{store.address}: delivers again",
        )
        self._thread = threading.Thread(target=self._run, name="penstock-redis-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._store.timers_changed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closing:
            try:
                wait_ms = self._step()
                self._problem.end()
            except ClientError as error:
                self._problem.report(error)
                self._has_lease = False
                wait_ms = _RETRY_MS
            except Exception:
                log.exception("a bug in the SDK: the maintenance of %s goes on", self._store.address)
                wait_ms = _RETRY_MS
            if wait_ms > 0:
                self._store.timers_changed.wait(wait_ms / 1000)
            self._store.timers_changed.clear()

    def _step(self) -> float:
        steady_ms = self._clock.monotonic_ms()
        if steady_ms >= self._renew_at_ms:
            self._has_lease = self._take_lease()
            self._renew_at_ms = steady_ms + _RENEW_MS
        if not self._has_lease:
            return self._renew_at_ms - steady_ms
        if self._trims_acknowledged and steady_ms >= self._trim_at_ms:
            self._store.trim_acknowledged()
            self._trim_at_ms = steady_ms + _TRIM_MS
        left_ms = self._store.deliver()
        return _IDLE_MS if left_ms < 0 else min(left_ms, _IDLE_MS)

    def _take_lease(self) -> bool:
        server = self._store.server
        key = server.key("lease")
        if server.command("SET", key, self._owner, "NX", "PX", LEASE_MS):
            return True
        if server.command("GET", key) != self._owner.encode():
            return False
        server.command("PEXPIRE", key, LEASE_MS)
        return True


class RedisQueue(RedisStore):
    """A `RedisStore` whose delayed messages are delivered while it is open."""

    def __init__(
        self,
        server: RedisServer,
        *,
        partitions: int = DEFAULT_PARTITIONS,
        max_delayed: int = MAX_DELAYED,
        trims_acknowledged: bool = False,
    ) -> None:
        super().__init__(server, partitions=partitions, max_delayed=max_delayed)
        self._maintenance = RedisMaintenance(self, trims_acknowledged=trims_acknowledged)

    def close(self) -> None:
        self._maintenance.close()
        super().close()
