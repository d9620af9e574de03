"""What /metrics of three brokers tells of replication: monitoring adds it up, so the sums have to be right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kafka import KafkaAdminClient, TopicPartition

from penstock.config.throttle import FOLLOWER_RATE
from support.cluster import Cluster
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "cluster.heal_after_ms": 600_000,
    "cluster.moves": 0,
    "topic.min.insync.replicas": 2,
    "groups.offsets_partitions": 1,
    "transactions.state_partitions": 1,
}
RECORDS = 50


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("metrics")
    with Cluster(folder, f"{zookeeper.address}/metrics", settings=SETTINGS) as made:
        yield made
        for number, broker in made.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def create(cluster: Cluster, topic: str, *placed: list[int], **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    new = NewTopic(topic, len(placed), replica_assignment=[*placed], config=config)
    admin.create_topics([new])[topic].result()


def values(cluster: Cluster, name: str, **labels: str) -> dict[int, float]:
    """Of each broker that answers."""
    return {number: cluster.brokers[number].metric(name, **labels) for number in cluster.alive()}


def total(cluster: Cluster, name: str) -> float:
    return sum(values(cluster, name).values())


def lags(cluster: Cluster, name: str, follower: int) -> list[float]:
    """Of each broker that leads something that this one follows."""
    found = (
        cluster.brokers[number].metrics().get((name, (("follower", str(follower)),))) for number in cluster.alive()
    )
    return [each for each in found if each is not None]


def test_a_cluster_has_one_controller_and_every_broker_knows_its_size(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "sized", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    until(lambda: total(cluster, "penstock_partitions") >= 9, "all have their replicas")
    assert values(cluster, "penstock_active_controller")[cluster.controller()] == 1
    assert total(cluster, "penstock_active_controller") == 1
    for state, count in (("alive", 3), ("away", 0)):
        assert set(values(cluster, "penstock_brokers", state=state).values()) == {count}
    until(lambda: total(cluster, "penstock_under_replicated_partitions") == 0, "all replicas are in sync")
    assert set(values(cluster, "penstock_offline_partitions").values()) == {0}
    placed = {place for place, found in cluster.view().places.items() if found.leader == 1}
    until(lambda: values(cluster, "penstock_leader_partitions")[1] == len(placed), "broker 1 leads what it shall")


def test_a_death_shows_as_under_replicated_and_offline_partitions_and_the_return_ends_it(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "watched", [2, 1, 3])
    create(cluster, "paired", [1, 2])
    create(cluster, "single", [2], **{"min.insync.replicas": "1"})
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all", "log_level": 0})
    for _ in range(RECORDS):
        producer.produce("watched", b"x")
    assert producer.flush(30) == 0
    before = {name: total(cluster, name) for name in COUNTERS}
    alone = sum(found.replicas == (2,) for found in cluster.view().places.values())
    with_two = sum(2 in found.replicas and len(found.replicas) > 1 for found in cluster.view().places.values())
    led_by_two = sum(found.leader == 2 and len(found.replicas) > 1 for found in cluster.view().places.values())
    killed = cluster.brokers[2].metrics()

    cluster.kill(2)
    until(lambda: set(values(cluster, "penstock_offline_partitions").values()) == {alone}, "a partition is offline")
    until(lambda: total(cluster, "penstock_under_replicated_partitions") == with_two, "others miss a replica")
    # Of "paired" one of two is left, where two are asked for.
    assert total(cluster, "penstock_under_min_isr_partitions") == 1
    assert set(values(cluster, "penstock_brokers", state="away").values()) == {1}
    assert total(cluster, "penstock_active_controller") == 1
    until(lambda: total(cluster, "penstock_preferred_replica_imbalance") > 0, "a partition has another leader")

    def of_the_dead(name: str) -> float:
        return killed[name, ()]

    elected = total(cluster, "penstock_leader_elections_total")
    assert elected == before["penstock_leader_elections_total"] - of_the_dead(COUNTERS[0]) + led_by_two
    shrinks = total(cluster, "penstock_isr_shrinks_total")
    assert shrinks == before["penstock_isr_shrinks_total"] - of_the_dead("penstock_isr_shrinks_total") + with_two
    expands = total(cluster, "penstock_isr_expands_total")
    # The follower is not in sync and nobody has heard of it: it counts as having nothing.
    lag = lags(cluster, "penstock_follower_lag_records", 2)
    largest = lags(cluster, "penstock_follower_lag_max_records", 2)
    assert RECORDS <= max(largest) <= sum(lag)

    cluster.start_again(2)
    until(lambda: total(cluster, "penstock_under_replicated_partitions") == 0, "all are in sync again")
    until(lambda: set(values(cluster, "penstock_offline_partitions").values()) == {0}, "all have a leader again")
    until(lambda: set(values(cluster, "penstock_preferred_replica_imbalance").values()) == {0}, "it leads again")
    assert total(cluster, "penstock_isr_expands_total") >= expands + with_two
    assert total(cluster, "penstock_under_min_isr_partitions") == 0
    assert total(cluster, "penstock_unclean_leader_elections_total") == 0
    until(lambda: sum(lags(cluster, "penstock_follower_lag_records", 2)) == 0, "the follower has everything")


COUNTERS = ("penstock_leader_elections_total", "penstock_isr_shrinks_total", "penstock_isr_expands_total")


def test_an_unclean_election_is_counted(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "unclean", [3, 1], **{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    # Broker 1 falls out of the set, then the only one that is in it dies.
    cluster.kill(1)
    cluster.wait_until([3], "unclean")
    cluster.kill(3)
    cluster.start_again(1)
    until(lambda: cluster.view().places["unclean", 0].leader == 1, "who is not in sync leads")
    assert total(cluster, "penstock_unclean_leader_elections_total") >= 1
    cluster.heal()


def test_a_move_is_shown_until_it_is_over(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "moved", [1, 2])
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    producer = Producer({"bootstrap.servers": cluster.kafka, "acks": "all", "log_level": 0})
    producer.produce("moved", b"x" * 1000)
    assert producer.flush(30) == 0

    def limit(value: str | None) -> None:
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(FOLLOWER_RATE.name, value or "", incremental_operation=kind)
        resource = ConfigResource(ResourceType.BROKER, "3", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    limit("0")
    client = KafkaAdminClient(bootstrap_servers=cluster.kafka)
    try:
        client.alter_partition_reassignments({TopicPartition("moved", 0): [1, 3]})
    finally:
        client.close()
    until(lambda: set(values(cluster, "penstock_reassigning_partitions").values()) == {1}, "all know of the move")
    # A replica that is being added is not missing.
    assert total(cluster, "penstock_under_replicated_partitions") == 0
    shrinks = total(cluster, "penstock_isr_shrinks_total")
    limit(None)
    until(lambda: set(values(cluster, "penstock_reassigning_partitions").values()) == {0}, "the move is over")
    # Nor has the one that was removed fallen behind.
    assert total(cluster, "penstock_isr_shrinks_total") == shrinks
