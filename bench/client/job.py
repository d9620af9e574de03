"""One load in a process of its own: the job as JSON on the command line, figures as JSON on standard output.

A job measures its own window: clock and server CPU are read right before the first message and right after
the last acknowledgement, so that connecting and preparing are not counted.
"""

from __future__ import annotations

import json
import resource
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from bench.client.dialects import dialect
from bench.client.driver import LAST, STAMP, DriverError, Load
from bench.client.payload import pool
from bench.servers.usage import cpu_s

READY = "ready"
_SLICE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do."""

    task: str
    protocol: str
    address: str
    topic: str
    partitions: int = 1
    size: int = 1024
    count: int = 0
    rate: int = 0
    skip: int = 0
    limit_s: float = 60.0
    server_pid: int | None = None
    payload: str = "random"
    load: Load = field(default_factory=Load)


class Window:
    """Time, server CPU and client CPU between two points."""

    def __init__(self, server_pid: int | None) -> None:
        self._pid = server_pid
        self._server = self._server_cpu()
        self._client = _own_cpu()
        self._clock = time.monotonic()

    def close(self, count: int) -> dict[str, float]:
        figures = {"seconds": time.monotonic() - self._clock, "count": float(count)}
        figures["client_cpu_s"] = _own_cpu() - self._client
        if self._pid is not None:
            figures["server_cpu_s"] = self._server_cpu() - self._server
        return figures

    def _server_cpu(self) -> float:
        return cpu_s(self._pid) if self._pid is not None else 0.0


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def produce(job: Job) -> dict[str, float]:
    """Send `count` messages as fast as they are taken, fewer if the time limit comes first."""
    publisher = dialect(job.protocol).publisher(job.address, job.topic, job.partitions, job.load)
    publisher.prepare(pool(job.payload), job.size)
    publisher.connect()
    window = Window(job.server_pid)
    deadline = time.monotonic() + job.limit_s
    sent = 0
    while sent < job.count and time.monotonic() < deadline:
        part = min(_SLICE, job.count - sent)
        publisher.send_many(part)
        sent += part
    publisher.flush(job.limit_s)
    figures = window.close(sent)
    publisher.close()
    return figures


def single(job: Job) -> dict[str, float]:
    """Send one message a request for `limit_s`."""
    publisher = dialect(job.protocol).publisher(job.address, job.topic, job.partitions, job.load)
    publisher.prepare(pool(job.payload), job.size)
    publisher.connect()
    window = Window(job.server_pid)
    deadline = time.monotonic() + job.limit_s
    sent = 0
    while time.monotonic() < deadline:
        publisher.send_many(64)
        sent += 64
    publisher.flush(60)
    figures = window.close(sent)
    publisher.close()
    return figures


def consume(job: Job) -> dict[str, float]:
    """Read the topic from its beginning."""
    subscriber = dialect(job.protocol).subscriber(job.address, job.topic, job.partitions, job.size)
    subscriber.connect()
    window = Window(job.server_pid)
    subscriber.count(job.count, job.limit_s)
    figures = window.close(job.count)
    subscriber.close()
    return figures


def pace(job: Job) -> dict[str, float]:
    """Send `rate` stamped messages a second until the time limit or until standard input closes."""
    publisher = dialect(job.protocol).publisher(job.address, job.topic, 1, job.load)
    publisher.connect()
    filler = pool(job.payload)[: job.size - STAMP.size]
    window = Window(job.server_pid)
    begin = time.monotonic()
    total = int(job.rate * job.limit_s)
    sent = 0
    while sent < total:
        pause = begin + sent / job.rate - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        if sent and sent % 50 == 0 and select.select([sys.stdin], [], [], 0)[0]:
            break
        publisher.send(STAMP.pack(sent, time.monotonic_ns()) + filler)
        sent += 1
    publisher.send(STAMP.pack(LAST, 0) + filler)
    publisher.flush(60)
    figures = window.close(sent)
    publisher.close()
    return figures


def listen(job: Job) -> dict[str, float]:
    """Time stamped messages from sending to receipt; the first `skip` are not counted."""
    subscriber = dialect(job.protocol).subscriber(job.address, job.topic, 1, job.size)
    subscriber.connect()
    print(READY, flush=True)
    delays: list[int] = []
    ended = False

    def on_body(body: bytes) -> bool:
        nonlocal ended
        now = time.monotonic_ns()
        if len(body) < STAMP.size:
            return True
        sequence, sent_ns = STAMP.unpack_from(body)
        ended = sequence == LAST
        if sequence >= job.skip:
            delays.append(now - sent_ns)
        return not ended

    subscriber.each(on_body, job.limit_s)
    subscriber.close()
    if not ended or not delays:
        raise DriverError(f"the paced stream broke off after {len(delays)} messages")
    delays.sort()
    figures = {name: _percentile(delays, part) for name, part in _PERCENTILES.items()}
    return {**figures, "count": float(len(delays))}


_PERCENTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}


def _percentile(ordered: list[int], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e6


TASKS = {"produce": produce, "single": single, "consume": consume, "pace": pace, "listen": listen}


def main() -> None:
    fields: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**{**fields, "load": Load(**fields["load"])})
    try:
        figures = TASKS[job.task](job)
    except (DriverError, OSError) as error:
        sys.exit(f"{job.task}: {error}")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
