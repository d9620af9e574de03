"""What waits is replicated: whoever leads delivers it, once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol import apis
from penstock.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from support.cluster import Cluster
from support.delayed import Arrivals, Sending, assert_not_early, delayed, send
from support.delayed_load import DelayedLoad
from support.listing import listed
from support.waiting import PATIENCE_S, until
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

SETTINGS = {"cluster.lease_ms": 2000, "cluster.lag_time_max_ms": 2000, "topic.min.insync.replicas": 2}


@pytest.fixture
def cluster(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"{zookeeper.address}/{tmp_path.name}", settings=SETTINGS) as running:
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def create(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)
    cluster.wait_until_whole()


def move(cluster: Cluster, topic: str, to: int) -> None:
    """Returns when the only replica is there."""
    partitions = (ReassignablePartition(partition_index=0, replicas=(to,)),)
    asked = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name=topic, partitions=partitions),))
    with Wire(cluster.brokers[to].address) as wire:
        answer = wire.ask(apis.ALTER_PARTITION_REASSIGNMENTS, 0, asked)
    assert answer["error_code"] == 0 and answer["responses"][0]["partitions"][0]["error_code"] == 0, answer
    until(lambda: cluster.view().places[topic, 0].replicas == (to,), f"{topic} is on {to}")


@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_leaders_come_and_go_under_load_and_nothing_is_lost_or_repeated(cluster: Cluster, ending: str) -> None:
    create(cluster, "t")
    load = DelayedLoad(cluster.kafka, seed=7)
    for _ in range(3):
        time.sleep(1.5)
        leader = cluster.leader("t")
        getattr(cluster, ending)(leader)
        time.sleep(1.0)
        cluster.start_again(leader)
        cluster.wait_until_whole()
    load.stop()
    send(cluster.kafka, "t", [delayed(b"end", "3s")], acks=-1)
    with Arrivals(cluster.kafka, "t") as arrivals:
        arrivals.until_seen(b"end", 60)
    assert_not_early(arrivals.all)
    counted = Counter(arrivals.values)
    counted.pop(b"end")
    assert load.acknowledged - counted.keys() == set()
    assert [value for value, count in counted.items() if count > 1] == []
    assert len(load.acknowledged) > 500


def test_a_follower_knows_names_schedules_and_transactions_when_it_begins_to_lead(cluster: Cluster) -> None:
    create(cluster, "t")
    send(cluster.kafka, "t", [delayed(b"a", "20s", timer_id="A"), delayed(b"b", "8s", timer_id="B")], acks=-1)
    send(cluster.kafka, "t", [Sending(b"tick", [("penstock-schedule", b"every 2s")])], acks=-1)
    cluster.kill(cluster.leader("t"))
    cancel = Sending(b"x", [("penstock-cancel", b"B")])
    send(cluster.kafka, "t", [delayed(b"a again", "9s", timer_id="A"), cancel], acks=-1)
    assert [record.value for record in listed(cluster.kafka, "t")] == [b"tick", b"a again"]
    with Arrivals(cluster.kafka, "t") as arrivals:
        arrivals.until_true(lambda: b"a again" in arrivals.values and arrivals.values.count(b"tick") >= 4, "both")
    assert set(arrivals.values) == {b"a again", b"tick"}
    dues = [int(arrival.headers["penstock-deliver-at"]) for arrival in arrivals.all if arrival.value == b"tick"]
    assert len(set(dues)) == len(dues)


def test_a_new_replica_gets_what_waits_though_the_log_before_it_is_gone(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    config = {"min.insync.replicas": "1"}
    admin.create_topics([NewTopic("t", 1, replication_factor=1, config=config)])["t"].result(PATIENCE_S)
    messages = [delayed(b"%d" % number, "12s") for number in range(300)]
    send(cluster.kafka, "t", [Sending(b"old"), *messages, Sending(b"old")])
    at = TopicPartition("t", 0, -1)
    admin.delete_records([at])[TopicPartition("t", 0)].result(PATIENCE_S)
    first = cluster.leader("t")
    other = next(number for number in cluster.numbers if number != first)
    move(cluster, "t", other)
    cluster.kill(first)
    send(cluster.kafka, "t", [Sending(b"new")])
    with Arrivals(cluster.kafka, "t") as arrivals:
        arrivals.until(301)
    assert Counter(arrivals.values) == Counter([b"new", *(message.value for message in messages)])
    assert_not_early(arrivals.all)
