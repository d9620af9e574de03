"""The settings of brokers that are one; see `broker.py` for the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config.coordinator import CoordinatorAddress, parse_coordinator
from penstock.config.setting import INT_MAX, meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """[cluster]: brokers that are one: where they meet, and how they look after each other."""

    coordinator: CoordinatorAddress | None = field(
        default=None,
        metadata=meaning(
            "zk://HOST:PORT,HOST:PORT/PATH of the ZooKeeper that holds the cluster's state; empty for one broker.",
            make=parse_coordinator,
        ),
    )
    coordinator_tls: bool = field(
        default=False,
        metadata=meaning(
            "Whether ZooKeeper is reached through TLS: checked against security.ca_file and by name, and shown "
            "security.certificate_file if that is set."
        ),
    )
    lease_ms: int = field(
        default=6_000,
        metadata=meaning("Milliseconds after which a silent broker counts as dead.", low=1_000, high=300_000),
    )
    connect_timeout_ms: int = field(
        default=10_000,
        metadata=meaning(
            "Milliseconds that a starting broker waits for ZooKeeper or its database to answer before it gives up.",
            low=1,
        ),
    )
    heal_after_ms: int = field(
        default=600_000,
        metadata=meaning("Milliseconds that a broker may be away before its replicas move to other brokers.", low=0),
    )
    balance_after_ms: int = field(
        default=60_000,
        metadata=meaning("Milliseconds of uneven load after which partitions move.", low=0),
    )
    moves: int = field(
        default=8,
        metadata=meaning("Partitions that the controller moves at a time; 0 turns automatic moves off.", low=0),
    )
    move_bytes_per_second: int = field(
        default=33_554_432,
        metadata=meaning("Bytes per second that a broker fetches for new replicas at most; 0 for no limit.", low=0),
    )
    lag_time_max_ms: int = field(
        default=10_000,
        metadata=meaning("Milliseconds that a follower may be behind its leader and still count as in sync.", low=1),
    )
    lag_max_messages: int = field(
        default=0,
        metadata=meaning("Records that a follower may be behind and still count as in sync; 0 for no limit.", low=0),
    )
    fetch_wait_max_ms: int = field(
        default=500,
        metadata=meaning("Longest time, in milliseconds, that a follower's fetch waits for new records.", high=INT_MAX),
    )
