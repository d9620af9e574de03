"""Retention deletes nothing of an archived topic that its archive does not have, whoever leads, and wherever the group
of the archive is coordinated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

PARTITIONS = 3
MESSAGES = 40
SETTINGS = {
    "segment.bytes": "4096",
    "retention.ms": "1",
    "min.insync.replicas": "2",
    "penstock.archive.group": "lake",
}


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"cluster.lease_ms": 2_000, "log.retention_check_ms": 200, "groups.offsets_partitions": 3}
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=settings) as running:
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def commit(cluster: Cluster, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "lake"})
    consumer.commit(offsets=[TopicPartition(topic, index, offset) for index in range(PARTITIONS)], asynchronous=False)
    consumer.close()


def starts(cluster: Cluster, topic: str) -> set[int]:
    """Where the partitions begin; nothing while one of them has no leader yet."""
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "looks"})
    try:
        return {
            consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=PATIENCE_S)[0]
            for index in range(PARTITIONS)
        }
    except KafkaException:
        return set()
    finally:
        consumer.close()


def leaders(admin: AdminClient, topic: str) -> set[int]:
    partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {partition.leader for partition in partitions.values()}


def produce(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka, "linger.ms": 0, "batch.num.messages": 1})
    for number in range(MESSAGES):
        for index in range(PARTITIONS):
            producer.produce(topic, b"%d" % number + b"." * 700, partition=index)
    assert producer.flush(PATIENCE_S) == 0


def test_nothing_goes_before_it_is_archived(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    new = [
        NewTopic("archived", PARTITIONS, 3, config=SETTINGS),
        NewTopic("other", PARTITIONS, 3, config=SETTINGS | {"penstock.archive.group": ""}),
        NewTopic("bounded", PARTITIONS, 3, config=SETTINGS | {"penstock.archive.max.bytes": "10000"}),
    ]
    for made in admin.create_topics(new).values():
        made.result(PATIENCE_S)
    for topic in ("archived", "bounded", "other"):
        produce(cluster, topic)
    until(lambda: starts(cluster, "other") == {MESSAGES}, "retention where nothing is archived")
    assert starts(cluster, "archived") == {0}
    until(lambda: min(starts(cluster, "bounded")) > 0, "retention of more than is held")
    assert max(starts(cluster, "bounded")) < MESSAGES

    commit(cluster, "archived", 17)
    until(lambda: starts(cluster, "archived") == {17}, "retention of what is archived")

    # Followers have kept it too: whoever leads now has it all.
    cluster.brokers[1].kill()
    until(lambda: 1 not in leaders(admin, "archived"), "others leading")
    # One that had not heard yet where its leader begins has more, until it looks itself.
    until(lambda: starts(cluster, "archived") == {17}, "retention by the others")
    commit(cluster, "archived", MESSAGES)
    until(lambda: starts(cluster, "archived") == {MESSAGES}, "retention of everything")
