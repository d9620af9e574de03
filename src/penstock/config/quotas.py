"""Bounds of quotas; see `broker.py` for the other settings. The quotas themselves are in the cluster's metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config.setting import INT_MAX, meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """[quotas]: how quotas are kept to. The quotas themselves are set with `penstock quota`."""

    entities: int = field(default=10_000, metadata=meaning("Users, client ids and addresses that may have a quota."))
    tracked_entities: int = field(
        default=10_000,
        metadata=meaning(
            "Users, client ids and addresses whose use of each quota is tracked; those above it share one record."
        ),
    )
    max_throttle_ms: int = field(
        default=300_000,
        metadata=meaning(
            "Longest time, in milliseconds, for which a client that is above a quota is not read from.", high=INT_MAX
        ),
    )
    connections_per_second: int = field(
        default=0,
        metadata=meaning(
            "Connections that the broker accepts in a second, those of other brokers apart; more wait in line. 0 for "
            "no bound.",
            low=0,
        ),
    )
