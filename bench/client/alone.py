"""One message, its acknowledgement, and the next, through the client that wakes up with the acknowledgement."""

from __future__ import annotations

import time
from itertools import cycle

from confluent_kafka import KafkaError, Message, Producer

from bench.client.driver import DriverError
from bench.client.job import Job, Window, percentiles
from bench.client.kafka import COMMON, producer_settings
from bench.client.payload import pool

_PATIENCE_S = 30.0


def alone(job: Job) -> dict[str, float]:
    """Send for `limit_s`, the partitions in turn; the first message to each is not counted."""
    producer = Producer({"bootstrap.servers": job.address, **COMMON, **producer_settings(job.load)})
    body = pool(job.payload)[: job.size]
    outcomes: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        outcomes.append(error)

    def send(partition: int) -> None:
        outcomes.clear()
        producer.produce(job.topic, body, partition=partition, on_delivery=delivered)
        deadline = time.monotonic() + _PATIENCE_S
        while not outcomes and time.monotonic() < deadline:
            producer.poll(_PATIENCE_S)
        if not outcomes or outcomes[0] is not None:
            raise DriverError(f"a message was not acknowledged: {outcomes[0] if outcomes else 'out of time'}")

    for partition in range(job.partitions):
        send(partition)
    took: list[int] = []
    turns = cycle(range(job.partitions))
    window = Window(job.server_pids)
    deadline = time.monotonic() + job.limit_s
    while time.monotonic() < deadline:
        begin = time.monotonic_ns()
        send(next(turns))
        took.append(time.monotonic_ns() - begin)
    return {**window.close(len(took)), **percentiles(took)}
