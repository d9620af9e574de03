"""`penstock topic` on three brokers: how many replicas, where, and which of them are missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from support.cluster import Cluster
from support.commands import complaint, said, told
from support.programs import PENSTOCK, run
from support.waiting import until
from support.zookeeper import ZooKeeperProcess

SETTINGS = {"cluster.lease_ms": 2_000, "cluster.lag_time_max_ms": 2_000, "cluster.heal_after_ms": 600_000}


@pytest.fixture(scope="module")
def cluster(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("commands")
    with Cluster(folder, f"{zookeeper.address}/commands", settings=SETTINGS) as made:
        yield made


def penstock(cluster: Cluster, *arguments: str) -> CompletedProcess[bytes]:
    return run([PENSTOCK, *arguments, "-b", cluster.kafka])


def test_replicas_are_chosen_and_placed(cluster: Cluster) -> None:
    cluster.heal()
    made = penstock(cluster, "topic", "create", "pairs", "--partitions", "3", "--replication-factor", "2")
    assert said(made) == "created topic pairs with 3 partitions, 2 replicas each\n"
    (described,) = told(penstock(cluster, "topic", "describe", "pairs", "--json"))
    assert [len(set(each["replicas"])) for each in described["partitions"]] == [2, 2, 2]
    assert [sorted(each["isr"]) for each in described["partitions"]] == [
        sorted(each["replicas"]) for each in described["partitions"]
    ]
    said(penstock(cluster, "topic", "create", "placed", "--replica-assignment", "3:1,2:3"))
    (described,) = told(penstock(cluster, "topic", "describe", "placed", "--json"))
    assert [each["replicas"] for each in described["partitions"]] == [[3, 1], [2, 3]]
    assert [each["leader"] for each in described["partitions"]] == [3, 2]
    text = complaint(penstock(cluster, "topic", "create", "many", "--replication-factor", "4"))
    assert "3 broker(s) can take replicas; alive are 1, 2, 3" in text
    again = complaint(penstock(cluster, "topic", "create", "pairs"))
    assert "already exists (3 partitions, 2 replicas each); nothing was changed" in again


def test_what_is_missing_is_named_while_a_broker_is_away(cluster: Cluster) -> None:
    cluster.heal()
    said(penstock(cluster, "topic", "create", "left", "--replica-assignment", "2:1"))
    said(penstock(cluster, "topic", "create", "lost", "--replica-assignment", "2"))
    said(penstock(cluster, "topic", "create", "well", "--replica-assignment", "1:3"))
    cluster.kill(2)
    until(lambda: cluster.view().places["lost", 0].leader == -1, "one has no leader")
    until(lambda: cluster.view().places["left", 0].leader == 1, "another has another leader")

    def named(*arguments: str) -> dict[str, str]:
        found = told(penstock(cluster, "topic", "describe", *arguments, "--json"))
        return {each["topic"]: each["state"] for each in found if each["topic"] in ("left", "lost", "well")}

    assert named("--under-replicated-partitions") == {"left": "under-replicated"}
    assert named("--unavailable-partitions") == {"lost": "unavailable"}
    both = ("--under-replicated-partitions", "--unavailable-partitions")
    assert named(*both) == {"left": "under-replicated", "lost": "unavailable"}
    assert named("left", *both) == {"left": "under-replicated"}
    assert said(penstock(cluster, "topic", "describe", "well", *both)).startswith("no partition is")
    table = said(penstock(cluster, "topic", "describe", "left", "--under-replicated-partitions")).splitlines()
    assert table[1].split() == ["left", "0", "1", "2,1", "1", "2", "under-replicated"]
    # Those without a leader have no offsets to tell, and do not keep the others from telling theirs.
    lines = said(penstock(cluster, "topic", "describe", "lost")).splitlines()
    assert lines[2].split() == ["0", "none", "2", "2", "2", "unavailable", "-", "-", "-"]
    cluster.start_again(2)
    until(lambda: named(*both) == {}, "all is well again")
