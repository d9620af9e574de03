"""A member of a group as a program: reads, writes down what it does, then commits. SIGTERM makes it leave.

It is a process of its own so that it can be killed. Every line of its file is an event of `support/history.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import access

POLL_S = 0.1
BATCH = 50


class Diary:
    """The file of one member; what is in it stays when the process is killed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, **event: object) -> None:
        line = json.dumps({"kind": kind, "at_ns": time.monotonic_ns(), **event}) + "\n"
        os.write(self._file, line.encode())

    def assigned(self, partitions: Iterable[int]) -> None:
        self.write("assigned", partitions=sorted(partitions))

    def revoked(self, partitions: Iterable[int]) -> None:
        self.write("revoked", partitions=sorted(partitions))

    def consumed(self, partition: int, offset: int, payload: bytes) -> None:
        self.write("consumed", partition=partition, offset=offset, payload=payload.decode())

    def committing(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self.write("committing", partition=partition, offset=offset)

    def failed(self, error: object) -> None:
        self.write("failed", error=str(error))


class Stop:
    """Whether the program was asked to stop."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True


def confluent(given: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings: dict[str, Any] = {
        **access.librdkafka(given.bootstrap),
        "client.id": given.name,
        "group.id": given.group,
        "enable.auto.commit": given.auto_commit_ms > 0,
        "auto.commit.interval.ms": given.auto_commit_ms,
        "auto.offset.reset": "earliest",
        "reconnect.backoff.max.ms": 500,
        "fetch.wait.max.ms": 100,
        "log_level": 0,
    }
    if given.instance:
        settings["group.instance.id"] = given.instance
    if given.protocol == "consumer":
        # How long a session is, and who makes the plan, is the broker's business.
        settings |= {"group.protocol": "consumer", "group.remote.assignor": given.assignor}
    else:
        settings |= {
            "partition.assignment.strategy": given.strategy,
            "session.timeout.ms": given.session_ms,
            "heartbeat.interval.ms": given.session_ms // 6,
        }
    consumer = Consumer(settings)

    def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
        diary.assigned(found.partition for found in partitions)

    def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
        diary.revoked(found.partition for found in partitions)

    consumer.subscribe([given.pattern or given.topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
    while not stop.asked:
        offsets: dict[int, int] = {}
        for message in consumer.consume(BATCH, POLL_S):
            if message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                diary.consumed(partition, offset, message.value() or b"")
                offsets[partition] = offset + 1
        if offsets and not given.auto_commit_ms:
            diary.committing(offsets)
            try:
                places = [TopicPartition(given.topic, partition, offset) for partition, offset in offsets.items()]
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException as error:
                diary.failed(error)
    consumer.close()


def kafka_python(given: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            diary.assigned(found.partition for found in assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            diary.revoked(found.partition for found in revoked)

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    settings = {
        **access.kafka_python(given.bootstrap),
        "client_id": given.name,
        "group_id": given.group,
        "group_instance_id": given.instance or None,
        "partition_assignment_strategy": [assignors[given.strategy]],
        "session_timeout_ms": given.session_ms,
        "heartbeat_interval_ms": given.session_ms // 6,
        "enable_auto_commit": given.auto_commit_ms > 0,
        "auto_commit_interval_ms": given.auto_commit_ms or 5000,
        "auto_offset_reset": "earliest",
        "max_poll_records": BATCH,
    }
    consumer = None
    while consumer is None:
        try:
            consumer = KafkaConsumer(**settings)
        except KafkaError as error:  # the broker may be away just now, and this client asks only once
            diary.failed(error)
            time.sleep(POLL_S)
    consumer.subscribe([given.topic], listener=Listener())
    while not stop.asked:
        offsets = {}
        try:
            polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
        except KafkaError as error:  # the broker is away just now
            diary.failed(error)
            continue
        for place, records in polled.items():
            for record in records:
                diary.consumed(place.partition, record.offset, record.value)
                offsets[place.partition] = record.offset + 1
        if offsets and not given.auto_commit_ms:
            diary.committing(offsets)
            try:
                consumer.commit(
                    {
                        TopicPartition(given.topic, partition): OffsetAndMetadata(offset, "", -1)
                        for partition, offset in offsets.items()
                    }
                )
            except KafkaError as error:
                diary.failed(error)
    try:
        consumer.close()
    except KafkaError as error:  # there is no broker to take leave of
        diary.failed(error)


async def aiokafka(given: argparse.Namespace, diary: Diary, stop: Stop) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            diary.assigned(found.partition for found in assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            diary.revoked(found.partition for found in revoked)

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
    consumer = None
    while consumer is None:
        consumer = AIOKafkaConsumer(
            **access.aiokafka(given.bootstrap),
            client_id=given.name,
            group_id=given.group,
            group_instance_id=given.instance or None,
            partition_assignment_strategy=[assignors[given.strategy]],
            session_timeout_ms=given.session_ms,
            heartbeat_interval_ms=given.session_ms // 6,
            enable_auto_commit=given.auto_commit_ms > 0,
            auto_commit_interval_ms=given.auto_commit_ms or 5000,
            auto_offset_reset="earliest",
            # After NOT_LEADER to ListOffsets it goes on asking the same broker until it reads the metadata again.
            metadata_max_age_ms=10_000,
        )
        consumer.subscribe([given.topic], listener=Listener())
        try:
            await consumer.start()
        except KafkaError as error:  # the broker may be away just now, and this client asks only once
            diary.failed(error)
            await consumer.stop()
            consumer = None
            await asyncio.sleep(POLL_S)
    while not stop.asked:
        offsets = {}
        try:
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH)
            for place, records in found.items():
                for record in records:
                    diary.consumed(place.partition, record.offset, record.value)
                    offsets[place.partition] = record.offset + 1
            if offsets and not given.auto_commit_ms:
                diary.committing(offsets)
                await consumer.commit(
                    {TopicPartition(given.topic, partition): offset for partition, offset in offsets.items()}
                )
        except KafkaError as error:
            diary.failed(error)
    try:
        await consumer.stop()
    except asyncio.CancelledError as error:  # of a fetch of its own that waited for a broker which is away
        diary.failed(repr(error))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("client", "bootstrap", "group", "topic", "name", "diary"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--strategy", default="range")
    parser.add_argument("--instance", default="")
    parser.add_argument("--protocol", default="classic")
    parser.add_argument("--assignor", default="uniform")
    parser.add_argument("--pattern", default="")
    parser.add_argument("--session-ms", type=int, default=2000)
    parser.add_argument("--auto-commit-ms", type=int, default=0)
    given = parser.parse_args()
    diary, stop = Diary(given.diary), Stop()
    diary.write("begun", pid=os.getpid())
    if given.client == "confluent":
        confluent(given, diary, stop)
    elif given.client == "kafka-python":
        kafka_python(given, diary, stop)
    else:
        asyncio.run(aiokafka(given, diary, stop))


if __name__ == "__main__":
    main()
