"""Three brokers that talk to each other through TLS, and know each other by their certificates."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.certificates import Authority, tls_settings
from support.cluster import Cluster
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "security.protocols": "INTER_BROKER:SSL",
    "security.client_certificates": "required",
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "topic.min.insync.replicas": 2,
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, authority: Authority, tmp_path: Path) -> Iterator[Cluster]:
    settings = {**SETTINGS, **tls_settings(authority)}
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=settings) as running:
        yield running


def send(cluster: Cluster, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "log_level": 0})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(2 * PATIENCE_S) == 0


def read(cluster: Cluster, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.kafka, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    found: list[int] = []

    def has_all() -> bool:
        found.extend(int(each.value() or b"") for each in consumer.consume(count, 0.2) if each.error() is None)
        return len(found) >= count

    until(has_all, f"{count} messages are read", PATIENCE_S * 2)
    consumer.close()
    return found


def test_replication_failover_and_renewed_certificates(cluster: Cluster, authority: Authority, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result()
    send(cluster, topic, range(300))
    victim = cluster.leader(topic)
    cluster.kill(victim)
    send(cluster, topic, range(300, 600))
    # Every broker has another certificate from now on, and the one that was killed comes back with it.
    authority.sign("broker")
    for number in cluster.alive():
        os.kill(cluster.brokers[number].pid, signal.SIGHUP)
    cluster.start_again(victim)
    cluster.wait_until_whole()
    send(cluster, topic, range(600, 900))
    assert read(cluster, topic, 900) == list(range(900))


def test_a_broker_without_a_certificate_is_not_taken_for_one(cluster: Cluster, authority: Authority) -> None:
    """The port that only brokers may use is closed to everybody else by TLS itself."""
    said = re.search(r"INTER_BROKER://127\.0\.0\.1:(\d+)", cluster.brokers[1].log)
    assert said is not None
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        pytest.raises(OSError),
        socket.create_connection(("127.0.0.1", int(said[1])), PATIENCE_S) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secured,
    ):
        # In TLS 1.3 the refusal comes with the first answer.
        secured.sendall(bytes(8))
        if not secured.recv(1):
            raise ConnectionResetError("the connection was closed")
