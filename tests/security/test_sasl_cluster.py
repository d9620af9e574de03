"""Three brokers that log in to each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol import apis
from penstock.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from penstock.security.scram import ScramMechanism
from support.cluster import Cluster
from support.sasl import ADMIN, AUTHENTICATION_FAILED, PASSWORD, log_in, password_file
from support.waiting import PATIENCE_S, until
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

BROKERS_PASSWORD = "among brokers"


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    settings = {
        "security.protocols": "INTER_BROKER:SASL_PLAINTEXT",
        "security.inter_broker_user": "broker",
        "security.inter_broker_password_file": password_file(tmp_path, "brokers", BROKERS_PASSWORD),
        "security.admin_user": ADMIN,
        "security.admin_password_file": password_file(tmp_path),
        # Connections between brokers outlive several sessions.
        "security.max_session_ms": 2_000,
        "cluster.lease_ms": 2_000,
        "cluster.lag_time_max_ms": 2_000,
        "topic.min.insync.replicas": 2,
    }
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


def inter_broker_address(cluster: Cluster, number: int) -> tuple[str, int]:
    said = re.findall(r"INTER_BROKER://127\.0\.0\.1:(\d+)", cluster.brokers[number].log)
    return "127.0.0.1", int(said[-1])


def test_replication_and_a_kill(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result()
    send(cluster, topic, range(300))
    victim = cluster.leader(topic)
    cluster.kill(victim)
    send(cluster, topic, range(300, 600))
    cluster.start_again(victim)
    cluster.wait_until_whole()
    send(cluster, topic, range(600, 900))
    assert read(cluster, topic, 900) == list(range(900))

    def renewed() -> bool:
        logins = cluster.brokers[1].metric(
            "penstock_logins_total", mechanism=ScramMechanism.SHA_512.value, result="accepted"
        )
        return logins > 12

    until(renewed, "brokers have logged in to each other again and again")
    for number in cluster.alive():
        assert BROKERS_PASSWORD not in cluster.brokers[number].log
        assert cluster.brokers[number].metric("penstock_sessions_expired_total") == 0


def test_a_user_is_no_broker(cluster: Cluster) -> None:
    """The inter-broker listener takes other users, but not for brokers: a forged marker is refused."""
    address = inter_broker_address(cluster, 1)
    markers = WriteTxnMarkersRequest(markers=())
    with Wire(address) as stranger:
        stranger.send(apis.WRITE_TXN_MARKERS, 1, markers)
        with pytest.raises(EOFError):
            stranger.exactly(1)
    with Wire(address) as wrong:
        assert log_in(wrong, "broker", PASSWORD)["error_code"] == AUTHENTICATION_FAILED
    with Wire(address) as user:
        assert log_in(user)["error_code"] == 0
        assert not takes_markers(user)
    with Wire(address) as broker:
        assert log_in(broker, "broker", BROKERS_PASSWORD)["error_code"] == 0
        assert takes_markers(broker)


def takes_markers(wire: Wire) -> bool:
    from penstock.protocol.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic

    marker = WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name="no-such-topic", partition_indexes=(0,)),),
        coordinator_epoch=0,
    )
    answer = wire.ask(apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=(marker,)))
    code = answer["markers"][0]["topics"][0]["partitions"][0]["error_code"]
    return bool(code != 31)
