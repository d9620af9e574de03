"""Three brokers: who holds what, moves and elections, draining, and a broker that is away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from penstock.admin import BrokerState, Cluster, NewTopic, TopicPartition
from support import cluster as processes
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {"cluster.lease_ms": 2_000, "cluster.lag_time_max_ms": 2_000, "cluster.heal_after_ms": 600_000}


@pytest.fixture(scope="module")
def three(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[processes.Cluster]:
    folder: Path = tmp_path_factory.mktemp("admin")
    with processes.Cluster(folder, f"{zookeeper.address}/admin", settings=SETTINGS) as made:
        yield made


def test_brokers_partitions_and_moves(three: processes.Cluster) -> None:
    cluster = Cluster(three.kafka, timeout_s=PATIENCE_S)
    made = cluster.topics.create([NewTopic(name="orders", replica_assignment=[[1, 2], [2, 3]])])
    assert [partition.replicas for partition in made["orders"].partitions] == [(1, 2), (2, 3)]
    first, second, gone = (TopicPartition("orders", index) for index in range(3))

    described = cluster.brokers.describe([1, 2, 9])
    assert described.errors[9].message == "there is no broker 9; there are 1, 2, 3"
    assert {broker.state for broker in described.values.values()} == {BrokerState.ALIVE}
    assert [(each.topic, each.partition) for each in described[1].replicas if each.topic == "orders"] == [("orders", 0)]

    # One partition moves, one does not exist.
    moved = cluster.reassignments.move({first: [3, 2], gone: [3, 2]})
    assert set(moved.values) == {first} and moved.errors[gone].code == "UNKNOWN_TOPIC_OR_PARTITION"
    until(lambda: not cluster.reassignments.list(), "the move is over")
    three.wait_until([2, 3], "orders", 0)
    assert cluster.reassignments.cancel([first]).errors[first].code == "NO_REASSIGNMENT_IN_PROGRESS"
    cluster.reassignments.elect_preferred_leaders([first])
    until(lambda: cluster.topics.describe(["orders"])["orders"].partitions[0].leader == 3, "the first replica leads")
    again = cluster.reassignments.elect_preferred_leaders([first])
    assert again.errors[first].code == "ELECTION_NOT_NEEDED"

    drained = cluster.brokers.drain([1, 9])
    assert set(drained.values) == {1} and set(drained.errors) == {9}
    until(lambda: cluster.brokers.describe([1])[1].state is BrokerState.DRAINING, "the broker knows of it")
    cluster.brokers.undrain([1]).all()
    until(lambda: cluster.brokers.describe([1])[1].state is BrokerState.ALIVE, "the broker takes partitions again")

    # Whether its lease has ended or not, and whichever broker is asked: a broker that is not there is not waited for.
    three.kill(3)
    assert cluster.brokers.drain([3]).errors[3].code == "BROKER_NOT_AVAILABLE"
    until(lambda: all(_knows_that_3_is_gone(three, id) for id in (1, 2)), "both others know of it")
    away = cluster.brokers.describe([3])[3]
    assert (away.state, away.address) == (BrokerState.AWAY, None) and away.replicas
    assert cluster.brokers.drain([3]).errors[3].code == "BROKER_NOT_AVAILABLE"
    partitions = cluster.topics.partitions("orders").items
    assert all(each.partition.is_under_replicated and each.partition.offline_replicas == (3,) for each in partitions)
    assert [(each.start, each.end, each.error) for each in partitions] == [(0, 0, None)] * 2
    assert second not in cluster.offsets.latest([first, second]).errors


def test_a_topic_is_created_when_every_broker_knows_it(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    settings = {"cluster.lease_ms": 20_000}
    with (
        processes.Cluster(tmp_path / "brokers", f"{zookeeper.address}/known", settings=settings, gates=True) as three,
        ThreadPoolExecutor(1) as threads,
    ):
        # The controller is asked to create the topic.
        controller = three.controller()
        late = next(number for number in three.numbers if number != controller)
        three.cut_off_from_tree(late)
        cluster = Cluster(three.kafka, timeout_s=2 * PATIENCE_S)
        placed = NewTopic(name="orders", replica_assignment=[[controller]])
        creating = threads.submit(lambda: (cluster.topics.create([placed]), _knows(three, late, "orders")))
        until(lambda: _knows(three, controller, "orders"), "the controller knows of the topic")
        done, _ = wait([creating], timeout=1)
        assert not done
        three.repair()
        created, is_known = creating.result(PATIENCE_S)
    assert created["orders"].partitions[0].replicas == (controller,) and is_known


def _knows(three: processes.Cluster, id: int, topic: str) -> bool:
    return (topic, 0) in three.view(id).places


def _knows_that_3_is_gone(three: processes.Cluster, id: int) -> bool:
    view = three.view(id)
    return 3 not in view.brokers and all(view.places["orders", index].leader == 2 for index in (0, 1))
