"""Topics in a database beside topics in log files: one cluster, whose brokers know each other through ZooKeeper or
through that database.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from penstock.sql.passwords import new_key
from support.broker_process import BrokerProcess
from support.cluster import Cluster
from support.commands import said
from support.crew import SETTINGS as GROUP_SETTINGS
from support.exactly_once import Passage, Verdict, judge
from support.programs import PENSTOCK, run
from support.stores import NewDatabase
from support.waiting import PATIENCE_S, until
from support.zookeeper import ZooKeeperProcess
from transactions.exactly_once import (
    AUDIT,
    AUDIT_PARTITIONS,
    PARTITIONS,
    SOURCE,
    TARGET,
    Feeder,
    Reader,
    Workshop,
    committed_by_workers,
    output_of,
    read_all,
    read_inputs,
)

from .conftest import by_hand, query

SETTINGS = {
    **GROUP_SETTINGS,
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "topic.min.insync.replicas": 2,
    "transactions.state_partitions": 3,
}
IN_FILES = {"penstock.storage": "segmented"}
IN_DATABASE = {"penstock.storage": "sql"}


@pytest.fixture
def url(new_database: NewDatabase) -> str:
    return new_database("mariadb")


@pytest.fixture
def chroot() -> str:
    return f"/tests/{uuid.uuid4().hex}"


@pytest.fixture(params=["zookeeper", "database"])
def cluster(request: pytest.FixtureRequest, url: str, chroot: str, tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, all of which have the database."""
    tree = None
    if request.param == "zookeeper":
        zookeeper: ZooKeeperProcess = request.getfixturevalue("zookeeper")
        tree = zookeeper.address + chroot
    with Cluster(tmp_path / "c", tree, settings=SETTINGS, env=lambda number: {"PENSTOCK_SQL_URL": url}) as cluster:
        yield cluster
        assert cluster.complaints == []


def wait_until_settled(cluster: Cluster) -> None:
    """The broker that was killed is back, and leads again what it should."""
    cluster.wait_until_whole()

    def is_settled() -> bool:
        views = [cluster.view(number) for number in cluster.numbers]
        leaders = {views[0].places[TARGET, each].leader for each in range(PARTITIONS)}
        is_led = all(place.leader == place.replicas[0] for view in views for place in view.places.values())
        return is_led and leaders == set(cluster.numbers) and all(view.places == views[0].places for view in views)

    until(is_settled, "all brokers lead again", 2 * PATIENCE_S)


def test_transactions_over_both_lose_and_repeat_nothing_when_a_leader_is_killed(
    cluster: Cluster, url: str, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka, "log_level": 0})
    topics = [
        NewTopic(SOURCE, PARTITIONS, 3, config=IN_FILES),
        NewTopic(TARGET, PARTITIONS, 3, config=IN_DATABASE),
        NewTopic(AUDIT, AUDIT_PARTITIONS, 3, config=IN_FILES),
    ]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_S)
    until(lambda: {SOURCE, TARGET, AUDIT} <= {name for name, _ in cluster.view().places}, "the topics are known")
    places = cluster.view().places
    assert {len(places[SOURCE, each].replicas) for each in range(PARTITIONS)} == {3}
    assert {places[TARGET, each].replicas for each in range(PARTITIONS)} == {(1,), (2,), (3,)}
    reader, feeder = Reader(cluster.kafka), Feeder(cluster.kafka, per_second=200)
    with Workshop(cluster, tmp_path, seed=1) as workshop:

        def wait_for_more() -> None:
            before = len(reader.seen)

            def is_so() -> bool:
                workshop.look_after()
                return len(reader.seen) >= before + 200

            until(is_so, "transactions go on", 2 * PATIENCE_S)

        reader.start()
        feeder.start()
        try:
            for name in ("one", "two"):
                workshop.start(name)
            wait_for_more()
            leader = cluster.leader(TARGET)
            cluster.kill(leader)
            wait_for_more()
            cluster.start_again(leader)
            wait_until_settled(cluster)
            wait_for_more()
            feeder.stop()
            inputs = read_inputs(cluster.kafka)
            wanted = {partition: len(numbers) for partition, numbers in inputs.items()}

            def is_through() -> bool:
                workshop.look_after()
                return committed_by_workers(cluster.kafka) == wanted

            until(is_through, "all of the input is through", 2 * PATIENCE_S)
            workshop.stop()
            outputs = [output_of(message) for message in read_all(cluster.kafka, TARGET, PARTITIONS)]
            until(lambda: len(reader.seen) >= len(outputs), "the reader has caught up", 2 * PATIENCE_S)
        finally:
            feeder.stop()
            reader.stop()
        audited = read_all(cluster.kafka, AUDIT, AUDIT_PARTITIONS)
        passage = Passage(
            inputs,
            outputs,
            [(message.value() or b"").decode() for message in audited],
            list(reader.seen),
            workshop.tokens("aborted"),
            workshop.tokens("committed"),
            committed_by_workers(cluster.kafka),
        )
    assert feeder.failed == []
    assert judge(passage) == Verdict()
    assert passage.aborted
    # One of the three has its rows, and the others have none.
    tables = {table for (table,) in by_hand(url, query("SELECT table_name FROM queue"))}
    assert {f"{TARGET}_{each}" for each in range(PARTITIONS)} <= tables
    assert not any(table.startswith((SOURCE, AUDIT)) for table in tables)
    folders = {path.name for path in tmp_path.glob("c/broker-*/data/**") if path.is_dir()}
    assert any(name.startswith(SOURCE) for name in folders)
    assert not any(name.startswith(TARGET) for name in folders)


def test_zookeeper_shows_which_databases_are_alive(
    zookeeper: ZooKeeperProcess, chroot: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(new_key())
    key_file.chmod(0o600)
    group = new_database("sqlite").removeprefix("sqlite:///")
    options = ["--coordinator", f"zk://{zookeeper.address}{chroot}"]
    env = {"PENSTOCK_SQL_URL": new_database("sqlite")}
    broker = BrokerProcess(tmp_path / "b", {"broker.id": 1, "sql.key_file": key_file}, options, env)
    tree = KazooClient(zookeeper.address)
    tree.start()
    tree.ensure_path(chroot)
    tree.chroot = chroot

    def servers() -> dict[str, str]:
        """Of the group, by their place; every one of them is a node that goes with the broker."""
        found = {name: tree.get(f"/databases/orders/{name}") for name in tree.get_children("/databases/orders")}
        assert all(stat.ephemeralOwner for _, stat in found.values())
        return {name: json.loads(value)["server"] for name, (value, _) in found.items()}

    try:
        broker.start()
        said(run([PENSTOCK, "dbnode", "add", "orders", "--primary", f"sqlite:///{group}", "-b", broker.kafka]))
        until(lambda: servers() == {"primary": group}, "the primary answers")
        away = Path(group).parent.rename(tmp_path / "away")
        until(lambda: servers() == {}, "the primary is gone")
        away.rename(Path(group).parent)
        until(lambda: servers() == {"primary": group}, "the primary answers again")
        assert broker.stop() == 0
        assert servers() == {}
        assert tree.get("/databases/orders")[1].ephemeralOwner == 0
    finally:
        broker.kill()
        tree.stop()
        tree.close()
