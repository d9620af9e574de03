"""Which archiver runs: it is the only member of a group, where another archiver sees it.

Rules:
- Brokers keep the clock: a member that crashed is one until its session is over, and no longer.
- It is politeness, not safety: the fence in the table decides what two archivers may write
  (docs/internals/pipeline.md).
"""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.pipeline.archive.archiver import ArchiveOptions
from penstock.pipeline.failure import PipelineError
from penstock.pipeline.topics.kafka import Brokers, quiet
from penstock.pipeline.topics.positions import subscribed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

SESSION_MS = 6_000
"""For so long a crashed archiver keeps others waiting."""
_PATIENCE_MS = 2 * SESSION_MS
_LOOK_S = 0.3
_POLL_S = 0.5
# It never takes a message, so it is never late in doing so.
_FOREVER_MS = 86_400_000


class ArchiverAtWorkError(PipelineError):
    """An archiver of the same name is at work on the same lake."""


@contextmanager
def archiver_lock(options: ArchiveOptions, *, take_over: bool) -> Iterator[None]:
    """The time in which an archiver works. Without `take_over` it waits until brokers count a crashed one as gone."""
    brokers = Brokers(options.kafka)
    topics = sorted(subscribed(brokers, options.subscription))
    if not topics:
        # There is nothing that two could archive, and nothing to subscribe to.
        yield
        return
    presence = AdvisoryLock(options.kafka, options.name, options.location.uri, topics[0])
    if not take_over:
        presence.wait_for_others(brokers)
    presence.begin()
    try:
        yield
    finally:
        presence.end()


class AdvisoryLock:
    """Of one archiver, from when it begins until it ends."""

    def __init__(self, kafka: Mapping[str, str], name: str, uri: str, topic: str) -> None:
        """`topic` is any that there is: a member of a group has to have subscribed to one."""
        self._kafka = kafka
        self._name = name
        self._uri = uri
        self._topic = topic
        self._group = f"penstock-{name}.at-work.{zlib.crc32(uri.encode()):08x}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._stay, name="penstock-presence", daemon=True)

    def wait_for_others(self, brokers: Brokers) -> None:
        """Returns when no other archiver runs; raises `ArchiverAtWorkError` if one still does after a while."""
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + _PATIENCE_MS
        while others := brokers.members(self._group):
            if clock.monotonic_ms() > deadline_ms:
                raise ArchiverAtWorkError(
                    f"an archiver named {self._name} is at work on {self._uri} ({', '.join(others)}): "
                    "stop it, or pass --take-over"
                )
            self._ended.wait(_LOOK_S)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _stay(self) -> None:
        from confluent_kafka import Consumer

        settings = {
            "group.id": self._group,
            "client.id": f"{socket.gethostname()}/{os.getpid()}",
            "session.timeout.ms": SESSION_MS,
            "max.poll.interval.ms": _FOREVER_MS,
            "enable.auto.commit": False,
        }
        consumer = Consumer(quiet(dict(self._kafka) | settings))
        try:
            consumer.subscribe([self._topic], on_assign=_take_nothing)
            while not self._ended.is_set():
                consumer.poll(_POLL_S)
        finally:
            consumer.close()


def _take_nothing(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    consumer.pause(list(partitions))
