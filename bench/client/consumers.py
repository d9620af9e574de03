"""A group of real consumers in one process: what an application waits for when its group changes.

Every consumer has threads of its own inside librdkafka; this thread only looks, every few milliseconds, whether one of
them has something to say. The window's client CPU tells whether the client was in the way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.client.driver import DriverError
from bench.client.job import Job, Window
from bench.client.kafka import COMMON

POLL_S = 0.002


class Crowd:
    """The consumers of one group and what each was given."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._total = job.partitions * len(job.topics)
        self._owned: dict[Consumer, int] = {}

    def join(self, count: int) -> None:
        for _ in range(count):
            consumer = Consumer(self._settings())
            self._owned[consumer] = 0
            consumer.subscribe(list(self._job.topics), on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost)

    def leave(self) -> None:
        """Closing blocks until the group is left, and the others must be heard meanwhile."""
        consumer, _ = self._owned.popitem()
        threading.Thread(target=consumer.close).start()

    def run_until_settled(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self._settled():
            if time.monotonic() > deadline:
                sizes = sorted(self._owned.values())
                raise DriverError(f"the group did not settle in {limit_s:g} s: {sum(sizes)} assigned, {sizes}")
            for consumer in list(self._owned):
                message = consumer.poll(0)
                if message is not None and message.error():
                    raise KafkaException(message.error())
            time.sleep(POLL_S)

    def close(self) -> None:
        """Side by side: one close after the other would take a rebalance each."""
        closing = [threading.Thread(target=consumer.close) for consumer in self._owned]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _settled(self) -> bool:
        sizes = self._owned.values()
        return sum(sizes) == self._total and max(sizes) - min(sizes) <= 1

    def _gained(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer in self._owned:
            self._owned[consumer] += len(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer in self._owned:
            self._owned[consumer] -= len(partitions)

    def _settings(self) -> dict[str, str | int]:
        return {
            "bootstrap.servers": self._job.address,
            "group.id": self._job.group,
            "group.protocol": self._job.group_protocol,
            "enable.auto.commit": "false",
            **COMMON,
            **self._classic(),
        }

    def _classic(self) -> dict[str, str | int]:
        """What the new protocol leaves to the server, and refuses to be told."""
        if self._job.group_protocol != "classic":
            return {}
        return {
            "partition.assignment.strategy": "cooperative-sticky",
            "heartbeat.interval.ms": self._job.heartbeat_ms,
        }


def rebalance(job: Job) -> dict[str, float]:
    """First start of the whole group, one more consumer, one less: seconds each."""
    crowd = Crowd(job)
    whole = Window(job.server_pids)
    figures = {
        "start_s": _timed(lambda: crowd.join(job.members), crowd, job.limit_s),
        "join_s": _timed(lambda: crowd.join(1), crowd, job.limit_s),
        "leave_s": _timed(crowd.leave, crowd, job.limit_s),
    }
    figures |= whole.close(3)
    crowd.close()
    return figures


def _timed(trigger: Callable[[], None], crowd: Crowd, limit_s: float) -> float:
    begin = time.monotonic()
    trigger()
    crowd.run_until_settled(limit_s)
    return time.monotonic() - begin
