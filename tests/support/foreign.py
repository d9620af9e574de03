"""What was sent, as a client sees it that has nothing of ours in it: kafka-python."""

from __future__ import annotations

import time
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition

from support.waiting import PATIENCE_S, until


class Seen(NamedTuple):
    """One record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def seen_in(kafka: str, topic: str, count: int = 0, *, committed: bool = True) -> list[Seen]:
    """All records that are there now, and more until there are so many; by partition and offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=kafka,
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if committed else "read_uncommitted",
    )
    try:
        if count:
            # Somebody is about to send, and perhaps to make the topic.
            until(lambda: consumer.partitions_for_topic(topic), f"there is a topic {topic}")
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[Seen] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count or any(consumer.position(place) < end for place, end in ends.items()):
            assert time.monotonic() < deadline, f"{len(found)} of {count} records in {topic}"
            for records in consumer.poll(timeout_ms=200).values():
                found += [
                    Seen(each.partition, each.offset, each.key, each.value, list(each.headers), each.timestamp)
                    for each in records
                ]
        return sorted(found, key=lambda each: (each.partition, each.offset))
    finally:
        consumer.close()


def values_in(kafka: str, topic: str, count: int = 0, *, committed: bool = True) -> list[bytes | None]:
    return [each.value for each in seen_in(kafka, topic, count, committed=committed)]
