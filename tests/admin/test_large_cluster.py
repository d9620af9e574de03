"""A cluster of many partitions: who asks about one thing does not pay for the metadata of all."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from conftest import BrokerFactory
from penstock.admin import AdminError, Cluster, NewTopic, TopicPartition
from support.broker_process import BrokerProcess
from support.delayed import delayed, send
from support.waiting import PATIENCE_S

WIDE, SMALL, GROUP = "wide", "small", "readers"
PARTITIONS = 400
CALLS: dict[str, Callable[[Cluster], object]] = {
    "a topic": lambda cluster: cluster.topics.describe([SMALL]).all(),
    "its partitions": lambda cluster: cluster.topics.partitions(SMALL),
    "what is retired": lambda cluster: cluster.retirement.describe(SMALL),
    "a new topic": lambda cluster: cluster.topics.create([NewTopic(name="new", partitions=1)]).all(),
    "what waits": lambda cluster: cluster.timers.list(SMALL),
    "a timer": lambda cluster: cluster.timers.find(SMALL, ["close"]).all(),
    "groups": lambda cluster: cluster.groups.list(),
    "a group": lambda cluster: cluster.groups.describe([GROUP]),
    "its offsets": lambda cluster: cluster.groups.offsets([GROUP]).all(),
    "transactions": lambda cluster: cluster.transactions.list(),
    "folders": lambda cluster: cluster.log_dirs.describe().all(),
    "moves": lambda cluster: cluster.reassignments.list(),
    "the authorizer": lambda cluster: cluster.acls.authorizer(),
}


def test_what_is_asked_about_one_thing_costs_no_metadata_of_all(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    cluster = Cluster(broker.kafka, timeout_s=PATIENCE_S)
    cluster.topics.create([NewTopic(name=WIDE, partitions=PARTITIONS), NewTopic(name=SMALL, partitions=1)]).all()
    send(broker.kafka, SMALL, [delayed(b"x", "1h", timer_id="close")])
    cluster.groups.set_offsets(GROUP, {TopicPartition(SMALL, 0): 0}).all()

    def answered() -> float:
        return broker.metric("penstock_response_bytes_total", api="Metadata")

    before = answered()
    assert len(cluster.topics.list()) == 2
    whole = answered() - before
    dear = {}
    for name, call in CALLS.items():
        before = answered()
        call(cluster)
        if (spent := answered() - before) >= whole / 2:
            dear[name] = spent
    assert dear == {}


@pytest.mark.parametrize("name", ["nowhere", "no name of a topic", "", "x" * 600, "a\udc80b"])
def test_looking_for_a_topic_neither_finds_nor_creates_it(cluster: Cluster, topic: str, name: str) -> None:
    cluster.topics.create([NewTopic(name=topic)]).all()
    for look in (
        lambda: cluster.topics.describe([name])[name],
        lambda: cluster.retirement.describe(name),
        lambda: cluster.timers.list(name),
    ):
        with pytest.raises(AdminError) as caught:
            look()
        assert caught.value.code == "UNKNOWN_TOPIC_OR_PARTITION"
    names = {each.name for each in cluster.topics.list(include_internal=True)}
    assert topic in names and name not in names


def test_the_next_address_is_asked_when_one_listens_and_does_not_answer(broker: BrokerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        cluster = Cluster(f"{host}:{port},{broker.kafka}", timeout_s=2.0)
        assert cluster.transactions.list().errors == ()
        assert list(cluster.log_dirs.describe().all()) == [1]
