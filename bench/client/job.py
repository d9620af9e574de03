"""A job: what one load process is to do, and the window in which it measures.

A job measures its own window: clock and server CPU are read right before the first request and right after
the last answer, so that connecting and preparing are not counted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.client.driver import Load
from bench.servers.usage import cpu_s

READY = "ready"
HEARTBEAT_MS = 3000  # of a classic member, the default of all clients; the new protocol's is the server's


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do; a task reads the fields that concern it."""

    task: str
    protocol: str
    address: str
    ca_file: str = ""
    """Whom to trust, where the address speaks TLS."""
    topic: str = ""
    partitions: int = 1
    size: int = 1024
    count: int = 0
    rate: int = 0
    skip: int = 0
    limit_s: float = 60.0
    server_pids: tuple[int, ...] = ()
    payload: str = "random"
    load: Load = field(default_factory=Load)
    topics: tuple[str, ...] = ()
    group: str = ""
    members: int = 1
    group_protocol: str = "classic"
    heartbeat_ms: int = HEARTBEAT_MS


class Window:
    """Time, server CPU and client CPU between two points."""

    def __init__(self, server_pids: tuple[int, ...]) -> None:
        self._pids = server_pids
        self._server = cpu_s(*server_pids)
        self._client = _own_cpu()
        self._clock = time.monotonic()

    def close(self, count: int) -> dict[str, float]:
        figures = {"seconds": time.monotonic() - self._clock, "count": float(count)}
        figures["client_cpu_s"] = _own_cpu() - self._client
        if self._pids:
            figures["server_cpu_s"] = cpu_s(*self._pids) - self._server
        return figures


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PERCENTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}


def percentiles(durations_ns: Sequence[int]) -> dict[str, float]:
    """p50 to max in milliseconds."""
    ordered = sorted(durations_ns)
    return {name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e6 for name, part in PERCENTILES.items()}
