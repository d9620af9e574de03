"""How fast connections are taken: in total, and from one address."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.security.client_quotas import FoundQuota, IpQuotas, RateQuota, Tracked
from penstock.security.quota_entity import QuotaEntity
from penstock.security.quota_keys import QuotaLimits
from penstock.security.rates import WINDOW_MS, SampledRate

MAX_DELAY_MS = WINDOW_MS
"""A connection that would have to wait longer is closed: it would hold a place that others could have."""


class ConnectionRates:
    """Decides how long a new connection waits."""

    def __init__(self, per_second: int, tracked_ips: int) -> None:
        """`per_second` bounds all connections together, 0 does not."""
        self._per_second = per_second
        self._all = SampledRate()
        self._by_ip = RateQuota(tracked_ips)
        self._quotas = IpQuotas({})

    def follow(self, quotas: Mapping[QuotaEntity, QuotaLimits]) -> None:
        """From now on these quotas of addresses hold."""
        self._quotas = IpQuotas(quotas)

    def pause_ms(self, now_ms: float) -> float:
        """A connection was accepted: how long to accept no other."""
        if not self._per_second:
            return 0.0
        self._all.record(1, now_ms)
        return min(self._all.throttle_ms(self._per_second, now_ms), MAX_DELAY_MS)

    def delay_ms(self, ip: str, now_ms: float) -> float | None:
        """How long a connection from this address waits before it is served; None if it is closed instead."""
        limit = self._quotas.find(ip)
        if limit is None:
            return 0.0
        found = FoundQuota(limit, Tracked(ip, None))
        delay_ms = self._by_ip.record(found, 1, now_ms)
        if delay_ms <= MAX_DELAY_MS:
            return delay_ms
        self._by_ip.take_back(found, 1, now_ms)
        return None
