"""Topics of a Kafka-protocol broker: made and ready to be used, and deleted."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from penstock.sdk.kafka.list_offsets import list_offsets

READY_LIMIT_S = 60.0
_ANSWER_S = 30.0


def create_topics(address: str, names: Sequence[str], partitions: int, replicas: int = 1) -> None:
    """Returns when every partition answers. Of several replicas all but one have to have what is acknowledged."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    settings = {"min.insync.replicas": str(replicas - 1)} if replicas > 1 else {}
    wanted = [NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=settings) for name in names]
    for done in admin.create_topics(wanted, operation_timeout=30).values():
        done.result(40)
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(name, index): latest for name in names for index in range(partitions)}
    deadline = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            for offset in admin.list_offsets(asked, request_timeout=10).values():
                offset.result(20)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def stored(address: str, topic: str, partitions: int) -> int:
    """How many messages a topic holds that nothing was ever deleted from."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, index): latest for index in range(partitions)}
    return sum(list_offsets(admin, asked, _ANSWER_S).all().values())


def delete_topics(address: str, names: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for done in admin.delete_topics(list(names), operation_timeout=30).values():
        done.result(40)
