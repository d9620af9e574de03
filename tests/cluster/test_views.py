"""Views in a cluster: they follow their base's leaders, whoever is killed, and every broker knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.receiving import ends
from support.viewing import TAGS
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {"cluster.lease_ms": 2_000, "cluster.lag_time_max_ms": 2_000, "groups.initial_rebalance_delay_ms": 0}
PARTITIONS = 3


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as running:
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def send(cluster: Cluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "compression.type": "lz4"})
    failed: list[KafkaError] = []
    for number in range(first, first + count):
        tag = b"wanted" if number % 10 == 0 else b"other"
        producer.produce(
            "orders",
            b"%d" % number,
            partition=number % PARTITIONS,
            headers=[(TAGS, tag)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(2 * PATIENCE_S) == 0
    assert not failed


def test_a_view_is_read_on_while_its_leaders_are_killed(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    settings = {"penstock.view.of": "orders", "penstock.view.tags": "wanted"}
    for topic in NewTopic("orders", PARTITIONS, 3), NewTopic("payments", config=settings):
        admin.create_topics([topic])[topic.topic].result(2 * PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["payments"])
    found: list[int] = []

    def has(wanted: int) -> bool:
        given = consumer.consume(500, timeout=0.2)
        found.extend(int(message.value() or b"") for message in given if message.error() is None)
        return len(set(found)) >= wanted

    send(cluster, 0, 300)
    until(lambda: has(30), "what matches of the first records", 2 * PATIENCE_S)
    killed = cluster.leader("orders", 0)
    cluster.kill(killed)
    send(cluster, 300, 300)
    until(lambda: has(60), "what matches of those sent while a broker is gone", 3 * PATIENCE_S)
    cluster.start_again(killed)
    cluster.wait_until_whole()
    send(cluster, 600, 300)
    until(lambda: has(90), "what matches of those sent when it is back", 2 * PATIENCE_S)
    assert sorted(set(found)) == list(range(0, 900, 10))
    assert ends(cluster.kafka, "payments", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 300)
    consumer.close()
    for number in cluster.alive():
        client = AdminClient({"bootstrap.servers": cluster.brokers[number].kafka})
        topics = client.list_topics(timeout=PATIENCE_S).topics
        seen = [{at: (each.leader, each.replicas) for at, each in topics[name].partitions.items()}
                for name in ("orders", "payments")]  # fmt: skip
        assert seen[0] == seen[1]
