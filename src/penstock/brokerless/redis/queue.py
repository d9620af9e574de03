"""Redis as a client opens it: the store, and the maintenance beside it."""

from __future__ import annotations

from penstock.brokerless.maintenance import IDLE_MS, LEASE_MS, Maintenance
from penstock.brokerless.redis.server import RedisServer
from penstock.brokerless.redis.store import MAX_DELAYED, RedisStore
from penstock.brokerless.topic_entries import DEFAULT_PARTITIONS

_TRIM_MS = 5_000


class RedisMaintenance(Maintenance):
    """Delivers what is due, and trims; it works from the beginning. Each of its scripts is safe to call twice, by any
    process.
    """

    def __init__(self, store: RedisStore, *, trims_acknowledged: bool) -> None:
        super().__init__(store.address, store.timers_changed)
        self._store = store
        self._trims_acknowledged = trims_acknowledged
        self._trim_at_ms = float("-inf")
        self.start()

    def work(self, steady_ms: float) -> float:
        if self._trims_acknowledged and steady_ms >= self._trim_at_ms:
            self._store.trim_acknowledged()
            self._trim_at_ms = steady_ms + _TRIM_MS
        left_ms = self._store.deliver()
        return IDLE_MS if left_ms < 0 else min(left_ms, IDLE_MS)

    def take_lease(self) -> bool:
        server = self._store.server
        key = server.key("lease")
        if server.command("SET", key, self.owner, "NX", "PX", LEASE_MS):
            return True
        if server.command("GET", key) != self.owner.encode():
            return False
        server.command("PEXPIRE", key, LEASE_MS)
        return True

    def release_lease(self) -> None:
        """It expires: another process may have it by now, and Redis deletes no key by its value."""


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
