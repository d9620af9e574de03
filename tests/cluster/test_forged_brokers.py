"""Clients that send what only brokers may send: they move no high watermark and end no transaction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.metadata import OFFSETS_TOPIC
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.metadata import MetadataRequest
from penstock.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from support.cluster import Cluster
from support.transactional import Protocol, RawProducer, read_committed
from support.wire import Wire, batch_of, fetch_request, produce_request
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    # Followers that were killed stay in the in-sync set for as long as a test takes.
    "cluster.lease_ms": 20_000,
    "cluster.lag_time_max_ms": 60_000,
    "transactions.state_partitions": 3,
    "topic.min.insync.replicas": 2,
}
FETCH = 16
BROKER = 4
"""The resource type in DescribeConfigs."""
ACKS_TIMEOUT_MS = 1_500
NONE = Code.NONE

_numbers = count()


@pytest.fixture(scope="module")
def running(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("forged")
    with Cluster(folder, f"{zookeeper.address}/forged", settings=SETTINGS) as running:
        running.coordinator_of_transactions("first")
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


@pytest.fixture
def topic(running: Cluster) -> str:
    """One of the test's own, whole."""
    name = f"topic-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": running.kafka})
    admin.create_topics([NewTopic(name, 1)])[name].result()
    running.heal()
    return name


def partition_of(wire: Wire, topic: str) -> tuple[Any, int]:
    """Its topic's id, and its leader epoch."""
    answer = wire.ask(apis.METADATA, 12, MetadataRequest(topics=None))
    (found,) = (each for each in answer["topics"] if each["name"] == topic)
    return found["topic_id"], found["partitions"][0]["leader_epoch"]


def fetch_as(wire: Wire, replica: int, topic: str, offset: int) -> int:
    """The error code of a fetch in the name of a follower that says it has everything before `offset`."""
    topic_id, epoch = partition_of(wire, topic)
    request = fetch_request([(topic_id, 0, offset)], FETCH, leader_epoch=epoch, session_epoch=0)
    request["replica_state"] = {"replica_id": replica, "replica_epoch": 1}
    request["topics"][0]["partitions"][0]["last_fetched_epoch"] = epoch
    ((found,),) = (each["partitions"] for each in wire.ask(apis.FETCH, FETCH, request)["responses"])
    code: int = found["error_code"]
    return code


def test_a_forged_follower_does_not_have_a_record_acknowledged_that_only_the_leader_has(
    running: Cluster, topic: str
) -> None:
    leader = running.leader(topic)
    followers = [number for number in running.numbers if number != leader]
    address = running.brokers[leader].address
    with Wire(address) as producer, Wire(address) as forger:
        assert producer.produce(topic, batch_of(b"first"))["error_code"] == NONE
        running.wait_until(running.numbers, topic)
        for number in followers:
            running.kill(number)
        try:
            request = produce_request(topic, batch_of(b"second"))
            request["timeout_ms"] = ACKS_TIMEOUT_MS
            sent = producer.send(apis.PRODUCE, 11, request)
            codes = {number: fetch_as(forger, number, topic, offset=2) for number in followers}
            ((answer,),) = (
                each["partition_responses"] for each in producer.receive(apis.PRODUCE, 11, sent)["responses"]
            )
        finally:
            running.heal()
    assert answer["error_code"] == Code.REQUEST_TIMED_OUT, "nobody but the leader has the record"
    assert codes == dict.fromkeys(followers, Code.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.name.lower())
def test_a_forged_marker_does_not_show_an_aborted_record(running: Cluster, topic: str, protocol: Protocol) -> None:
    leader, place = running.leader(topic), (topic, 0)
    names = (f"producer-{next(_numbers)}" for _ in count())
    name = next(name for name in names if running.coordinator_of_transactions(name) == leader)
    with Wire(running.brokers[leader].address) as wire:
        producer = RawProducer(wire, name, protocol)
        assert producer.init() == NONE
        if protocol is Protocol.OLD:
            assert producer.add(place) == {place: NONE}
        producer.write(place, b"aborted")
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transaction_result=True,
            coordinator_epoch=0,
            topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(0,)),),
        )
        (answer,) = wire.ask(apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=(marker,)))["markers"]
        assert producer.end(committed=False) == NONE
        assert read_committed(wire, place).values == []
        assert answer["topics"][0]["partitions"][0]["error_code"] == Code.CLUSTER_AUTHORIZATION_FAILED


def test_a_client_id_of_a_broker_does_not_make_a_client_one(running: Cluster) -> None:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="first",
        producer_id=1,
        producer_epoch=0,
        verify_only=False,
        topics=(AddPartitionsToTxnTopic(name=OFFSETS_TOPIC, partitions=(0,)),),
    )
    request = AddPartitionsToTxnRequest(transactions=(transaction,))
    for number, broker in running.brokers.items():
        other = number % len(running.numbers) + 1
        with Wire(broker.address, client_id=f"penstock-{other}") as wire:
            (answer,) = wire.ask(apis.ADD_PARTITIONS_TO_TXN, 5, request)["results_by_transaction"]
            ((result,),) = (each["results_by_partition"] for each in answer["topic_results"])
            assert result["partition_error_code"] == Code.TOPIC_AUTHORIZATION_FAILED


def test_every_broker_has_an_inter_broker_listener_that_nobody_named(running: Cluster) -> None:
    for number, broker in running.brokers.items():
        resource = DescribeConfigsResource(
            resource_type=BROKER, resource_name=str(number), configuration_keys=("advertised.listeners",)
        )
        with Wire(broker.address) as wire:
            request = DescribeConfigsRequest(resources=(resource,))
            (result,) = wire.ask(apis.DESCRIBE_CONFIGS, 4, request)["results"]
        (config,) = result["configs"]
        client, inter_broker = config["value"].split(",")
        assert client == f"PLAINTEXT://{broker.kafka}"
        name, _, address = inter_broker.partition("://127.0.0.1:")
        assert name == "INTER_BROKER"
        with Wire(("127.0.0.1", int(address))) as wire:
            answer = wire.ask(apis.METADATA, 12, MetadataRequest(topics=()))
        told = {each["node_id"]: each["port"] for each in answer["brokers"]}
        assert told.keys() == set(running.numbers)
        assert told[number] == int(address), "who comes through it is told the others' inter-broker listeners"
        assert not set(told.values()) & {each.address[1] for each in running.brokers.values()}
