"""A topic of many partitions on three brokers: made, written to with all in sync, and removed everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.waiting import until
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

PARTITIONS = 1000
SETTINGS = {"topic.min.insync.replicas": 3, "log.stray_keep_ms": 0}


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as cluster:
        yield cluster
        for number, broker in cluster.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def test_a_topic_of_many_partitions_is_made_replicated_and_removed(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic("many", PARTITIONS, 3)], operation_timeout=60, request_timeout=60)["many"].result()
    for broker in cluster.brokers.values():
        with Wire(broker.address) as wire:
            until(lambda wire=wire: wire.metadata("many")["error_code"] == 0, "every broker knows the topic")
            found = wire.metadata("many")["partitions"]
            assert len(found) == PARTITIONS
            assert all(len(each["isr_nodes"]) == 3 for each in found)
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all", "linger.ms": 20})
    failed: list[object] = []
    for number in range(PARTITIONS):
        producer.produce("many", b"%d" % number, partition=number, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(120) == 0
    assert len(failed) == PARTITIONS and set(failed) == {None}
    admin.delete_topics(["many"], operation_timeout=60, request_timeout=60)["many"].result()
    for broker in cluster.brokers.values():
        with Wire(broker.address) as wire:
            until(lambda wire=wire: wire.metadata("many")["error_code"] == 3, "every broker knows that it is gone")
        logs = broker.data / "logs"
        until(lambda logs=logs: not list(logs.glob("many-*")), "its folders are gone")
