"""Subscriptions in tests: what handlers have seen, and where their groups stand."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

import penstock
from penstock.sdk.kafka.list_offsets import list_offsets
from support.waiting import PATIENCE_S, until

SOON = penstock.Retries(first="100ms", factor=2, cap="1s", attempts=3, jitter=0)
"""For tests that do not want to wait."""


class Heard:
    """What handlers have been given, by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[penstock.Message] = []
        self._heard_ms: list[int] = []

    def __call__(self, message: penstock.Message) -> None:
        with self._lock:
            self._messages.append(message)
            self._heard_ms.append(time.time_ns() // 1_000_000)

    @property
    def messages(self) -> list[penstock.Message]:
        with self._lock:
            return list(self._messages)

    @property
    def values(self) -> list[bytes]:
        return [message.value or b"" for message in self.messages]

    @property
    def heard_ms(self) -> list[int]:
        """When each of the values was heard."""
        with self._lock:
            return list(self._heard_ms)

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(self.values)

    def wait(self, count: int, patience_s: float = PATIENCE_S) -> list[penstock.Message]:
        """The messages, once there are so many."""
        until(lambda: len(self.messages) >= count, f"{count} messages are handled", patience_s)
        return self.messages


@contextmanager
def running(client: penstock.Client) -> Iterator[penstock.Client]:
    """A client whose subscriptions run inside."""
    client.start()
    try:
        yield client
    finally:
        client.stop()


def create(admin: AdminClient, topic: str, partitions: int = 1) -> str:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    return topic


def committed(
    kafka: str, group: str, topic: str, partitions: int = 1, admin: AdminClient | None = None
) -> dict[int, int]:
    """Where the group goes on, by partition; what it has never read is not there."""
    admin = admin or AdminClient({"bootstrap.servers": kafka})
    places = [TopicPartition(topic, number) for number in range(partitions)]
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])
    found = asked[group].result().topic_partitions
    return {place.partition: place.offset for place in found if place.offset >= 0}


def ends(kafka: str, topic: str, partitions: int = 1, admin: AdminClient | None = None) -> dict[int, int]:
    admin = admin or AdminClient({"bootstrap.servers": kafka})
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): latest for number in range(partitions)}
    found = list_offsets(admin, asked, PATIENCE_S).all()
    return {place.partition: offset for place, offset in found.items()}


def wait_until_committed(kafka: str, group: str, topic: str, partitions: int = 1) -> None:
    """Everything that is there now is settled."""
    wanted = {number: end for number, end in ends(kafka, topic, partitions).items() if end}
    admin = AdminClient({"bootstrap.servers": kafka})

    def is_settled() -> bool:
        found = committed(kafka, group, topic, partitions, admin)
        return all(found.get(number, 0) >= end for number, end in wanted.items())

    until(is_settled, f"group {group} has committed the end of {topic}")


def wait_until_joined(kafka: str, group: str, members: int = 1) -> None:
    """The group has so many members, and each knows its partitions."""
    admin = AdminClient({"bootstrap.servers": kafka})

    def is_steady() -> bool:
        described = admin.describe_consumer_groups([group])[group].result()
        return described.state.name == "STABLE" and len(described.members) == members

    until(is_steady, f"group {group} has {members} members")


def member_ids(kafka: str, group: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": kafka})
    return {member.member_id for member in admin.describe_consumer_groups([group])[group].result().members}
