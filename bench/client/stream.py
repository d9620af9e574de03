"""Loads of one topic: produce it, read it, or stamp messages at a fixed rate and time them."""

from __future__ import annotations

import select
import sys
import time

from bench.client.dialects import dialect
from bench.client.driver import LAST, STAMP, DriverError
from bench.client.job import READY, Job, Window, percentiles
from bench.client.payload import pool

_SLICE = 32_768
_UNBATCHED_SLICE = 64
_UNBATCHED_FLUSH_S = 60.0


def produce(job: Job) -> dict[str, float]:
    """Send `count` messages as fast as they are taken, fewer if the time limit comes first."""
    return _send(job, job.count, _SLICE, job.limit_s)


def single(job: Job) -> dict[str, float]:
    """Send one message a request for `limit_s`."""
    return _send(job, sys.maxsize, _UNBATCHED_SLICE, _UNBATCHED_FLUSH_S)


def _send(job: Job, count: int, slice_size: int, flush_s: float) -> dict[str, float]:
    publisher = dialect(job.protocol, job.ca_file).publisher(job.address, job.topic, job.partitions, job.load)
    publisher.prepare(pool(job.payload), job.size)
    publisher.connect()
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    sent = 0
    while sent < count and time.monotonic() < deadline:
        part = min(slice_size, count - sent)
        publisher.send_many(part)
        sent += part
    publisher.flush(flush_s)
    figures = window.close(sent)
    publisher.close()
    return figures


def consume(job: Job) -> dict[str, float]:
    """Read the topic from its beginning."""
    subscriber = dialect(job.protocol, job.ca_file).subscriber(job.address, job.topic, job.partitions, job.size)
    subscriber.connect()
    window = Window(job.server_pids)
    subscriber.count(job.count, job.limit_s)
    figures = window.close(job.count)
    subscriber.close()
    return figures


def pace(job: Job) -> dict[str, float]:
    """Send `rate` stamped messages a second until the time limit or until standard input closes."""
    publisher = dialect(job.protocol, job.ca_file).publisher(job.address, job.topic, 1, job.load)
    publisher.connect()
    filler = pool(job.payload)[: job.size - STAMP.size]
    window = Window(job.server_pids)
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
    subscriber = dialect(job.protocol, job.ca_file).subscriber(job.address, job.topic, 1, job.size)
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
    return {**percentiles(delays), "count": float(len(delays))}
