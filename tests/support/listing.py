"""What waits, as a client that knows nothing of it reads it."""

from __future__ import annotations

import time
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from support.waiting import PATIENCE_S


def listed(kafka: str, topic: str, partition: int = 0, from_ms: int | None = None) -> list[Any]:
    """What waits in a partition, as kafka-python reads it from beginning to end, in small fetches."""
    consumer = KafkaConsumer(bootstrap_servers=kafka, fetch_max_wait_ms=20, max_partition_fetch_bytes=20_000)
    place = TopicPartition(f"__timers.{topic}", partition)
    consumer.assign([place])
    if from_ms is None:
        consumer.seek_to_beginning(place)
    else:
        found = consumer.offsets_for_times({place: from_ms})[place]
        consumer.seek(place, consumer.end_offsets([place])[place] if found is None else found.offset)
    end = consumer.end_offsets([place])[place]
    records: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while consumer.position(place) < end:
        assert time.monotonic() < deadline, f"{len(records)} records, {consumer.position(place)} of {end}"
        for found in consumer.poll(100).values():
            records += found
    consumer.close()
    return records
