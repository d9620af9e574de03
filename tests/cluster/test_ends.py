"""Where a log ends, asked while leaders are killed and go home: never less than what was acknowledged before."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.receiving import ends
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {"cluster.lease_ms": 2_000, "cluster.lag_time_max_ms": 2_000}
PARTITIONS = 6
KILLS = 3


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as running:
        yield running


class Load:
    """Sends to every partition all the while, and counts what is acknowledged."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "log_level": 0})
        self._topic = topic
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: Counter[int] = Counter()
        self.failed: list[KafkaError] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._enough.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"x", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0.005)
        self._producer.flush(2 * PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[message.partition() or 0] += 1


def test_an_end_is_never_below_what_was_acknowledged(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic("orders", PARTITIONS, 3)])["orders"].result(2 * PATIENCE_S)
    cluster.wait_until_known("orders")
    enough = threading.Event()

    def look() -> list[tuple[int, int, int]]:
        below = []
        while not enough.is_set():
            before = dict(load.acknowledged)
            found = ends(cluster.kafka, "orders", PARTITIONS, admin)
            below += [(at, found[at], count) for at, count in before.items() if found[at] < count]
        return below

    with Load(cluster.kafka, "orders") as load, ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            for number in range(KILLS):
                more = {at: load.acknowledged[at] + 50 for at in range(PARTITIONS)}
                killed = cluster.leader("orders", number)
                cluster.kill(killed)
                until(lambda m=more: all(load.acknowledged[at] > m[at] for at in m), "others lead", 2 * PATIENCE_S)
                cluster.start_again(killed)
                cluster.wait_until_whole()
        finally:
            enough.set()
    assert not load.failed
    assert looking.result() == [], "partition, told end, acknowledged before"
    assert ends(cluster.kafka, "orders", PARTITIONS) == dict(load.acknowledged)


def test_a_partition_without_a_leader_is_waited_for(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic("alone", 1, 1)])["alone"].result(2 * PATIENCE_S)
    cluster.wait_until_known("alone")
    leader = cluster.leader("alone")
    cluster.kill(leader)
    until(lambda: admin.list_topics(timeout=PATIENCE_S).topics["alone"].partitions[0].leader < 0, "nothing leads")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(ends, cluster.kafka, "alone", 1, admin)
        cluster.start_again(leader)
        assert found.result() == {0: 0}
