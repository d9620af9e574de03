"""Partitions are retired in a cluster: they are led with their successors, whoever is killed, and go when every group
of every broker has read them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.commands import told
from support.programs import PENSTOCK, run
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "log.retention_check_ms": 200,
    "groups.offsets_partitions": 6,
    "groups.initial_rebalance_delay_ms": 0,
}
PARTITIONS = 6
KEYS = [b"key-%d" % number for number in range(30)]
MESSAGES = 500


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as running:
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


class Sender:
    """An idempotent producer that sends keyed messages until it is stopped; each has a number of its own."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": cluster.kafka, "enable.idempotence": True, "delivery.timeout.ms": 60_000}
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.delivered: list[bytes] = []
        self.errors: list[object] = []
        self._thread.start()

    def more(self, count: int) -> None:
        wanted = len(self.delivered) + count
        until(lambda: self.errors or len(self.delivered) >= wanted, f"{count} more messages", 2 * PATIENCE_S)
        assert self.errors == []

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(2 * PATIENCE_S) == 0
        assert self.errors == []

    def _run(self) -> None:
        sent = 0
        while not self._stop.is_set():
            value = b"%d" % sent
            self._producer.produce(self._topic, value, KEYS[sent % len(KEYS)], on_delivery=self._report)
            sent += 1
            self._producer.poll(0.001)

    def _report(self, error: object, message: object) -> None:
        if error is None:
            self.delivered.append(message.value())  # type: ignore[attr-defined]
        else:
            self.errors.append(error)


def read(cluster: Cluster, topic: str, partitions: list[int]) -> dict[int, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[bytes]] = {partition: [] for partition in partitions}
    at_end: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, timeout=0.1):
            if message.error() is None:
                found[message.partition()].append(message.value())  # type: ignore[index, arg-type]
            else:
                at_end.add(message.partition())  # type: ignore[arg-type]
        return len(at_end) == len(partitions)

    until(is_read, f"reading {topic}")
    consumer.close()
    return found


def count(cluster: Cluster, topic: str) -> set[int]:
    """How many partitions each broker says that there are."""
    return {sum(name == topic for name, _ in cluster.view(number).places) for number in cluster.alive()}


def commit(cluster: Cluster, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def penstock(cluster: Cluster, *arguments: str) -> CompletedProcess[bytes]:
    return run([PENSTOCK, *arguments, "--json", "-b", cluster.kafka])


def is_empty(cluster: Cluster, topic: str, partition: int) -> bool:
    (described,) = told(penstock(cluster, "topic", "describe", topic))
    records: int = described["partitions"][partition]["records"]
    return records == 0


def test_retired_partitions_stay_with_their_successors_and_go_when_every_group_has_read_them(
    cluster: Cluster, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(PATIENCE_S)
    sender = Sender(cluster, topic)
    sender.more(MESSAGES)
    retired = told(penstock(cluster, "topic", "retire-partitions", topic, "--partitions", "4,5"))
    pairs = {int(index): successor for index, successor in retired["retired"].items()}
    assert set(pairs) == {4, 5}
    sender.more(MESSAGES)

    def are_together() -> bool:
        places = cluster.view().places
        return all(places[topic, old].leader == places[topic, new].leader >= 0 for old, new in pairs.items())

    until(are_together, "the leaders being together")
    before = read(cluster, topic, list(pairs))
    killed = cluster.leader(topic, pairs[5])
    cluster.kill(killed)
    sender.more(MESSAGES)
    until(are_together, "the leaders being together after a death")
    cluster.start_again(killed)
    cluster.wait_until_whole()
    sender.more(MESSAGES)
    until(are_together, "the leaders being together after a return")
    assert read(cluster, topic, list(pairs)) == before

    sender.stop()
    after = read(cluster, topic, [index for index in range(PARTITIONS) if index not in pairs])
    everything = [value for values in (*before.values(), *after.values()) for value in values]
    assert sorted(everything) == sorted(sender.delivered)

    # As many as there are partitions of the groups' topic: they are coordinated by different brokers.
    groups = [f"group-{number}" for number in range(6)]
    for group in groups:
        commit(cluster, group, topic, dict.fromkeys(pairs, 0))
    told(penstock(cluster, "topic", "alter", topic, "--set", "retention.ms=1"))
    until(lambda: is_empty(cluster, topic, 0), "retention in a partition that is not retired")
    for group in groups:
        assert count(cluster, topic) == {PARTITIONS}
        commit(cluster, group, topic, {index: len(values) for index, values in before.items()})
    until(lambda: count(cluster, topic) == {PARTITIONS - len(pairs)}, "the partitions going")
