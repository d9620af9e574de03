"""Replicas on their way, on real brokers and under load: healing, shares, draining, limits, and home again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartition

from penstock.config.draining import DRAINING
from penstock.config.throttle import FOLLOWER_RATE
from support.cluster import Cluster, Place
from support.confluent import consumer_of
from support.pulse import Pulse
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "cluster.heal_after_ms": 1_500,
    "cluster.balance_after_ms": 500,
    "groups.offsets_partitions": 1,
    "transactions.state_partitions": 1,
}
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("moves")
    with Cluster(folder, f"{zookeeper.address}/moves", settings=SETTINGS) as made:
        yield made
        for number, broker in made.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})


def create(cluster: Cluster, topic: str, *placed: list[int]) -> None:
    """With these replicas, or two of each of some partitions anywhere."""
    new = NewTopic(topic, len(placed), replica_assignment=[*placed]) if placed else NewTopic(topic, PARTITIONS, 2)
    admin = admin_of(cluster)
    admin.create_topics([new])[topic].result()


def set_on_broker(cluster: Cluster, number: int, name: str, value: str | None) -> None:
    """None takes the setting back."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
    admin = admin_of(cluster)
    admin.incremental_alter_configs([resource])[resource].result()


def places(cluster: Cluster, topic: str = "") -> list[Place]:
    """Of one topic, or of all; none while nobody answers."""
    with suppress(OSError, EOFError):
        return [place for (name, _), place in cluster.view().places.items() if topic in ("", name)]
    return []


def held(cluster: Cluster) -> Counter[int]:
    """How many replicas each broker has, once all of them are in sync; nothing before."""
    found = places(cluster)
    return Counter(broker for place in found for broker in place.replicas if all(each.is_whole for each in found))


def is_even(cluster: Cluster, *brokers: int) -> bool:
    counted = held(cluster)
    numbers = [counted[broker] for broker in brokers]
    return counted.keys() == set(brokers) and max(numbers) - min(numbers) < 2


def assert_all_is_there(pulse: Pulse) -> None:
    tally = pulse.finish()
    assert pulse.failed == []
    assert tally.is_good and tally.acknowledged > 0, tally


def test_a_cluster_is_whole_without_who_died_shares_with_who_comes_and_leaves_whom_it_shall(cluster: Cluster) -> None:
    create(cluster, "wandering")
    with Pulse(cluster.kafka, "wandering", PARTITIONS) as pulse:
        pulse.wait_for_more()
        cluster.kill(2)
        until(lambda: 2 not in held(cluster) and held(cluster), "others hold what it held")
        cluster.add()
        until(lambda: is_even(cluster, 1, 3, 4), "the new broker has its share")
        set_on_broker(cluster, 3, DRAINING.name, "true")
        until(lambda: is_even(cluster, 1, 4), "the drained broker is empty")
        pulse.wait_for_more()
        assert_all_is_there(pulse)
    set_on_broker(cluster, 3, DRAINING.name, None)


def test_a_new_replica_waits_for_its_limit_and_nobody_waits_for_it(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "slow", [1, 2])
    create(cluster, "brisk", [1, 3])
    with Pulse(cluster.kafka, "slow", 1) as slow, Pulse(cluster.kafka, "brisk", 1) as brisk:
        slow.wait_for_more()
        set_on_broker(cluster, 3, FOLLOWER_RATE.name, "0")
        client = KafkaAdminClient(bootstrap_servers=cluster.kafka)
        try:
            client.alter_partition_reassignments({TopicPartition("slow", 0): [1, 3]})
            until(lambda: any(3 in place.replicas for place in places(cluster, "slow")), "it is a replica")
            slow.wait_for_more(50)
            brisk.wait_for_more(50)
            assert TopicPartition("slow", 0) in client.list_partition_reassignments()
        finally:
            client.close()
        (place,) = places(cluster, "slow")
        assert place.in_sync == {1, 2}
        set_on_broker(cluster, 3, FOLLOWER_RATE.name, None)
        cluster.wait_until([1, 3], "slow")
        slow.wait_for_more()
        assert_all_is_there(slow)
        assert_all_is_there(brisk)


def test_a_new_replica_of_a_log_that_begins_later_begins_there(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "trimmed", [1, 2])
    producer = Producer({"bootstrap.servers": cluster.kafka, "log_level": 0})
    for number in range(20):
        producer.produce("trimmed", str(number))
    producer.flush()
    kept = ConfluentPartition("trimmed", 0, 15)
    admin = admin_of(cluster)
    admin.delete_records([kept])[kept].result()
    client = KafkaAdminClient(bootstrap_servers=cluster.kafka)
    try:
        client.alter_partition_reassignments({TopicPartition("trimmed", 0): [3, 1]})
    finally:
        client.close()
    cluster.wait_until([3, 1], "trimmed")
    until(lambda: cluster.leader("trimmed") == 3, "the new replica leads")
    consumer = consumer_of(cluster.brokers[1])
    consumer.assign([ConfluentPartition("trimmed", 0, 15)])
    found = [message.value() for message in consumer.consume(5, PATIENCE_S)]
    consumer.close()
    assert found == [str(number).encode() for number in range(15, 20)]


def test_leadership_is_home_again_after_all_have_been_restarted(cluster: Cluster) -> None:
    cluster.heal()
    create(cluster, "home", *([first, *(other for other in (1, 2, 3) if other != first)] for first in (1, 2, 3)))
    with Pulse(cluster.kafka, "home", 3) as pulse:
        pulse.wait_for_more()
        for number in (1, 2, 3):
            cluster.stop(number)
            cluster.start_again(number)
            cluster.wait_until_whole()

        def is_home() -> bool:
            found = places(cluster)
            return bool(found) and all(place.leader == place.replicas[0] for place in found)

        until(is_home, "everything is led by who should", 2 * PATIENCE_S)
        pulse.wait_for_more()
        assert_all_is_there(pulse)
