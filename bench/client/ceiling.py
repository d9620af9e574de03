"""Loads of a bare client, whose own cost is so small that the broker, or the kernel, is the limit."""

from __future__ import annotations

import sys

from bench.client.bare import Talk
from bench.client.job import Job, Window
from bench.client.talks import STORED_BATCHES, batch_of, fetch_talk, hold, plain_talk, produce_talk

PLAIN = "plain"
"""The protocol of a server that only receives and sends."""
_IN_FLIGHT = 4


def store(job: Job) -> dict[str, float]:
    """What `fetch` reads, all of it however long it takes: a fetch of what is not there would wait."""
    talk = produce_talk(job.topic, job.partitions, _batch(job), _IN_FLIGHT)
    return _hold(job, talk, STORED_BATCHES * job.partitions, float("inf"))


def produce(job: Job) -> dict[str, float]:
    """Full batches for `limit_s`, or `count` of them."""
    talk = produce_talk(job.topic, job.partitions, _batch(job), _IN_FLIGHT)
    return _hold(job, talk, job.count or sys.maxsize, job.limit_s)


def fetch(job: Job) -> dict[str, float]:
    """What `store` has stored, again and again, for `limit_s`."""
    batch = _batch(job)
    talk = fetch_talk(job.topic, job.partitions, batch, _records(job), STORED_BATCHES, _IN_FLIGHT)
    return _hold(job, talk, job.count or sys.maxsize, job.limit_s)


def _hold(job: Job, talk: Talk, count: int, limit_s: float) -> dict[str, float]:
    """`count` in the figures is that of the messages."""
    said = plain_talk(talk) if job.protocol == PLAIN else talk
    window = Window(job.server_pids)
    batches = hold(job.address, said, count, limit_s)
    return window.close(batches * _records(job))


def _records(job: Job) -> int:
    return job.load.batch_bytes // job.size


def _batch(job: Job) -> bytes:
    return batch_of(_records(job), job.size)
