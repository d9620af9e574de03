"""Transactions whose coordinator, group and partitions are on different brokers, in the protocol before KIP-890 and the
one after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.metadata import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from support.cluster import Cluster
from support.transactional import Place, Protocol, RawProducer, committed_offset, read_committed, state_of
from support.waiting import PATIENCE_S, until
from support.wire import Wire
from support.zookeeper import ZooKeeperProcess

SETTINGS = {
    "cluster.lease_ms": 2_000,
    "cluster.lag_time_max_ms": 2_000,
    "groups.offsets_partitions": 3,
    "transactions.state_partitions": 3,
    "topic.min.insync.replicas": 2,
}
NONE = Code.NONE
Wires = dict[int, Wire]

_numbers = count()


@pytest.fixture(scope="module")
def running(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("transactions")
    with Cluster(folder, f"{zookeeper.address}/transactions", settings=SETTINGS) as running:
        # Internal topics are made when somebody first asks for them.
        running.coordinator_of_group("first")
        running.coordinator_of_transactions("first")
        admin = AdminClient({"bootstrap.servers": running.kafka})
        admin.create_topics([NewTopic("orders", 3)])["orders"].result()
        yield running
        for number, broker in running.brokers.items():
            assert "Traceback" not in broker.log, f"broker {number}:\n{broker.log_tail}"


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Whole, and every partition is led by its preferred replica: coordinators stay where they are."""
    running.heal()

    def is_settled() -> bool:
        views = [running.view(number) for number in running.numbers]
        return all(place.leader == place.replicas[0] for view in views for place in view.places.values())

    until(is_settled, "every partition is led by its preferred replica", 2 * PATIENCE_S)
    return running


@pytest.fixture
def wires(cluster: Cluster) -> Iterator[Wires]:
    """A connection to each broker."""
    with ExitStack() as stack:
        yield {number: stack.enter_context(Wire(broker.address)) for number, broker in cluster.brokers.items()}


@pytest.fixture(params=list(Protocol), ids=lambda protocol: protocol.name.lower())
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


def group_of(cluster: Cluster, broker: int) -> str:
    """A new group that this broker coordinates."""
    names = (f"group-{next(_numbers)}" for _ in count())
    return next(name for name in names if cluster.coordinator_of_group(name) == broker)


def producer_of(cluster: Cluster, wires: Wires, broker: int, protocol: Protocol) -> RawProducer:
    """A new producer whose transactions this broker coordinates; it is connected to that broker."""
    names = (f"producer-{next(_numbers)}" for _ in count())
    name = next(name for name in names if cluster.coordinator_of_transactions(name) == broker)
    producer = RawProducer(wires[broker], name, protocol)
    assert producer.init() == NONE
    return producer


def take_along(producer: RawProducer, to_group: Wire, group: str, offsets: dict[Place, int]) -> dict[Place, int]:
    """Commits offsets in the transaction, as a client does: at the group's coordinator. Gives their codes."""
    if producer.protocol is Protocol.OLD:
        assert producer.add_offsets(group) == NONE
    to_coordinator, producer.wire = producer.wire, to_group
    try:
        return producer.commit_offsets(group, offsets)
    finally:
        producer.wire = to_coordinator


@pytest.mark.parametrize("group_broker", [1, 2, 3])
@pytest.mark.parametrize("transaction_broker", [1, 2, 3])
def test_offsets_are_committed_whichever_brokers_coordinate_the_group_and_the_transaction(
    cluster: Cluster, wires: Wires, protocol: Protocol, group_broker: int, transaction_broker: int
) -> None:
    group, place = group_of(cluster, group_broker), ("orders", 0)
    producer = producer_of(cluster, wires, transaction_broker, protocol)
    to_group = wires[group_broker]
    for offset, commits in ((3, True), (5, False), (7, True)):
        assert take_along(producer, to_group, group, {place: offset}) == {place: NONE}
        assert committed_offset(to_group, group, place, require_stable=True)[0] == Code.UNSTABLE_OFFSET_COMMIT
        assert producer.end(committed=commits) == NONE
        assert committed_offset(to_group, group, place, require_stable=True) == (NONE, offset if commits else 3)


@pytest.mark.parametrize("transaction_broker", [1, 2, 3])
def test_records_and_offsets_of_one_transaction_end_together(
    cluster: Cluster, wires: Wires, protocol: Protocol, transaction_broker: int
) -> None:
    producer = producer_of(cluster, wires, transaction_broker, protocol)
    groups = {broker: group_of(cluster, broker) for broker in wires}
    places = [("orders", partition) for partition in range(3)]
    to_leader = {place: wires[cluster.leader(*place)] for place in places}
    to_coordinator = producer.wire
    for value, commits in ((b"aborted", False), (b"committed", True)):
        value = b"%s %s" % (value, producer.name.encode())
        for place in places:
            if protocol is Protocol.OLD:
                assert producer.add(place) == {place: NONE}
            producer.wire = to_leader[place]
            producer.write(place, value)
            producer.wire = to_coordinator
        for broker, group in groups.items():
            assert take_along(producer, wires[broker], group, {("orders", 0): 9}) == {("orders", 0): NONE}
        assert producer.end(committed=commits) == NONE
        for place, wire in to_leader.items():
            assert (value in read_committed(wire, place).values) is commits
        for broker, group in groups.items():
            expected = (NONE, 9 if commits else -1)
            assert committed_offset(wires[broker], group, ("orders", 0), require_stable=True) == expected


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_a_client_cannot_add_an_internal_topic(cluster: Cluster, wires: Wires, topic: str) -> None:
    producer = producer_of(cluster, wires, 1, Protocol.OLD)
    assert producer.add((topic, 0)) == {(topic, 0): Code.TOPIC_AUTHORIZATION_FAILED}
    for verify_only in (False, True):
        request = AddPartitionsToTxnRequest(
            transactions=(
                AddPartitionsToTxnTransaction(
                    transactional_id=producer.name,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    verify_only=verify_only,
                    topics=(AddPartitionsToTxnTopic(name=topic, partitions=(0,)),),
                ),
            )
        )
        for version in (4, 5):
            (answer,) = producer.wire.ask(apis.ADD_PARTITIONS_TO_TXN, version, request)["results_by_transaction"]
            ((result,),) = (each["results_by_partition"] for each in answer["topic_results"])
            code = Code.TRANSACTION_ABORTABLE if verify_only else Code.TOPIC_AUTHORIZATION_FAILED
            assert result["partition_error_code"] == code
    assert state_of(producer.wire, producer.name) == "Empty"


def test_offsets_are_committed_while_the_coordinator_of_the_transaction_changes(
    cluster: Cluster, wires: Wires, protocol: Protocol
) -> None:
    """The group's coordinator has to find the new one, and a client that is told to try again gets through."""
    group, place = group_of(cluster, 1), ("orders", 0)
    producer = producer_of(cluster, wires, 2, protocol)
    assert take_along(producer, wires[1], group, {place: 4}) == {place: NONE}
    cluster.kill(2)
    try:

        def is_taken() -> bool:
            (code,) = producer_at_group(offset=6).values()
            # NOT_COORDINATOR would send the client to look for another coordinator of its group.
            assert code in (NONE, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS), code
            return code == NONE

        def producer_at_group(offset: int) -> dict[Place, int]:
            before, producer.wire = producer.wire, wires[1]
            try:
                return producer.commit_offsets(group, {place: offset})
            finally:
                producer.wire = before

        until(is_taken, "the offset is taken")
        producer.wire = wires[cluster.coordinator_of_transactions(producer.name)]
        until(lambda: producer.commit() == NONE, "the transaction is committed")
        assert committed_offset(wires[1], group, place, require_stable=True) == (NONE, 6)
    finally:
        cluster.heal()
