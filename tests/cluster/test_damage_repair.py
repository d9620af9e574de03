"""A bit that flips on one of three brokers: what it has lost is taken from the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import OffsetFetchRequest
from support.cluster import Cluster
from support.damage import flip, stored_batches
from support.transactional import RawProducer, all_committed
from support.waiting import PATIENCE_S, until
from support.wire import Wire, batch_of
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "groups.offsets_partitions": 1,
    "transactions.state_partitions": 1,
    "broker.default_replication_factor": 3,
}
TOPIC, OFFSETS, TRANSACTIONS = "orders", "__consumer_offsets", "__transaction_state"
REPLACED = "replaced damaged records with a copy from another replica"


@pytest.fixture
def cluster(own_zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "brokers", f"{own_zookeeper.address}/damage", settings=SETTINGS) as running:
        admin = AdminClient({"bootstrap.servers": running.kafka})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(2 * PATIENCE_S)
        running.wait_until_whole()
        yield running


def at_coordinator(cluster: Cluster, number: Callable[[], int], ask: Callable[[Wire], bool], what: str) -> None:
    def is_done() -> bool:
        with Wire(cluster.brokers[number()].address) as wire:
            return ask(wire)

    until(is_done, what, 2 * PATIENCE_S)


def commit(cluster: Cluster, group: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = (OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),)

    def ask(wire: Wire) -> bool:
        (answer,) = wire.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id=group, topics=topics))["topics"]
        return bool(answer["partitions"][0]["error_code"] == Code.NONE)

    at_coordinator(cluster, lambda: cluster.coordinator_of_group(group), ask, f"{group} commits")


def committed(cluster: Cluster, group: str) -> int:
    found = -1

    def ask(wire: Wire) -> bool:
        nonlocal found
        answer = wire.ask(apis.OFFSET_FETCH, 7, OffsetFetchRequest(group_id=group, topics=None))
        found = next((part["committed_offset"] for topic in answer["topics"] for part in topic["partitions"]), -1)
        return bool(answer["error_code"] == Code.NONE)

    at_coordinator(cluster, lambda: cluster.coordinator_of_group(group), ask, f"{group} is answered")
    return found


def stop_all(cluster: Cluster) -> None:
    """In an orderly way: what is damaged at the end of a log after a crash counts as an append that was cut short."""
    for number in cluster.numbers:
        cluster.stop(number)


def logs_of(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """The batches of partition 0 of a topic on every broker."""
    return [
        [batch.content for batch in stored_batches(cluster.brokers[number].data / "logs" / f"{topic}-0")]
        for number in cluster.numbers
    ]


def flip_in(cluster: Cluster, number: int, topic: str, name: bytes) -> None:
    batches = stored_batches(cluster.brokers[number].data / "logs" / f"{topic}-0")
    hurt = [batch for batch in batches if name in batch.content][-1]
    flip(hurt, len(hurt.content) - 3)


def test_a_coordinator_takes_what_it_has_lost_from_another_replica(cluster: Cluster) -> None:
    for offset in (1, 2):
        for group in ("first", "second", "third"):
            commit(cluster, group, offset)
    producer_at = cluster.coordinator_of_transactions("payments")
    cluster.wait_until_whole()
    with Wire(cluster.brokers[producer_at].address) as wire:
        producer = RawProducer(wire, "payments")
        until(lambda: producer.init() == 0, "the producer begins")
        former = producer.id
    leaders = {topic: cluster.leader(topic, 0) for topic in (OFFSETS, TRANSACTIONS)}
    stop_all(cluster)
    flip_in(cluster, leaders[OFFSETS], OFFSETS, b"second")
    flip_in(cluster, leaders[TRANSACTIONS], TRANSACTIONS, b"payments")
    cluster.start_again(*cluster.numbers)
    cluster.wait_until_whole()
    for topic, leader in leaders.items():
        until(lambda t=topic, n=leader: cluster.leader(t, 0) == n, "the damaged replica leads", 2 * PATIENCE_S)
    assert [committed(cluster, group) for group in ("first", "second", "third")] == [2, 2, 2]
    with Wire(cluster.brokers[leaders[TRANSACTIONS]].address) as wire:
        again = RawProducer(wire, "payments")
        until(lambda: again.init() == 0, "the producer begins again")
        assert (again.id, again.epoch) == (former, producer.epoch + 1), f"something was lost:\n{cluster.logs}"
    for topic, leader in leaders.items():
        broker = cluster.brokers[leader]
        assert REPLACED in broker.log
        assert broker.metric("penstock_state_lost_ranges", topic=topic) == 0
        assert broker.metric("penstock_damaged_ranges") == 0
        assert broker.metric("penstock_damage_repaired_total") >= 1
    stop_all(cluster)
    for copies in (logs_of(cluster, OFFSETS), logs_of(cluster, TRANSACTIONS)):
        shortest = min(map(len, copies))
        assert copies[0][:shortest] == copies[1][:shortest] == copies[2][:shortest]


def test_consumers_get_what_a_leader_has_lost_when_it_has_taken_it_from_a_follower(cluster: Cluster) -> None:
    leader = cluster.leader(TOPIC, 0)
    values = [b"first", b"second", b"third"]
    with Wire(cluster.brokers[leader].address) as wire:
        for value in values:
            assert wire.produce(TOPIC, batch_of(value))["error_code"] == Code.NONE
    stop_all(cluster)
    flip_in(cluster, leader, TOPIC, b"second")
    cluster.start_again(*cluster.numbers)
    cluster.wait_until_whole()
    until(lambda: cluster.leader(TOPIC, 0) == leader, "the damaged replica leads", 2 * PATIENCE_S)
    with Wire(cluster.brokers[leader].address) as wire:
        assert wire.fetch(TOPIC, 1)["error_code"] == Code.CORRUPT_MESSAGE
        until(lambda: wire.fetch(TOPIC, 1)["error_code"] == Code.NONE, "the damage is repaired")
        assert all_committed(wire, (TOPIC, 0)) == values
    assert REPLACED in cluster.brokers[leader].log
