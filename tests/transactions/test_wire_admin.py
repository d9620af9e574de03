"""Looking into transactions over the wire, and ending one by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.protocol import apis
from penstock.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from penstock.protocol.messages.describe_transactions import TopicData
from penstock.protocol.messages.list_transactions import ListTransactionsRequest
from penstock.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from support.broker_process import BrokerProcess
from support.ports import free_ports
from support.transactional import (
    Place,
    Protocol,
    RawProducer,
    begun,
    committed_offset,
    described,
    read_committed,
    state_of,
)
from support.wire import Wire

NONE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE = 0, 3, 47, 48
TRANSACTION_COORDINATOR_FENCED, TRANSACTIONAL_ID_NOT_FOUND, INVALID_REGULAR_EXPRESSION = 52, 105, 128
CLUSTER_AUTHORIZATION_FAILED = 31


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One with an inter-broker listener, through which an operator ends transactions by hand."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.inter_broker = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        yield process.start()
        assert process.stop() == 0
    finally:
        process.kill()


@pytest.fixture
def operator(broker: BrokerProcess) -> Iterator[Wire]:
    with Wire(broker.inter_broker_address) as connection:
        yield connection


@pytest.fixture
def producer(wire: Wire, topic: str, protocol: Protocol) -> RawProducer:
    return begun(wire, topic, protocol, timeout_ms=54_321)


def listed(wire: Wire, version: int = 2, **filters: Any) -> dict[str, tuple[int, str]]:
    answer = wire.ask(apis.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))
    assert answer["error_code"] == NONE
    return {
        found["transactional_id"]: (found["producer_id"], found["transaction_state"])
        for found in answer["transaction_states"]
    }


def producers_of(wire: Wire, place: Place) -> list[dict[str, Any]]:
    topic, partition = place
    request = DescribeProducersRequest(topics=(TopicRequest(name=topic, partition_indexes=(partition,)),))
    ((found,),) = (each["partitions"] for each in wire.ask(apis.DESCRIBE_PRODUCERS, 0, request)["topics"])
    assert found["error_code"] == NONE, found
    producers: list[dict[str, Any]] = found["active_producers"]
    return producers


def mark(wire: Wire, place: Place, **marker: Any) -> int:
    topic, partition = place
    written = WritableTxnMarker(
        topics=(WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        **{"transaction_result": False, "coordinator_epoch": 0} | marker,
    )
    (answer,) = wire.ask(apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=(written,)))["markers"]
    ((found,),) = (each["partitions"] for each in answer["topics"])
    assert found["partition_index"] == partition
    code: int = found["error_code"]
    return code


def test_a_transaction_is_described_from_its_begin_to_its_end(
    wire: Wire, producer: RawProducer, places: list[Place]
) -> None:
    name = producer.name
    (empty,) = described(wire, name)
    assert empty.transaction_state == "Empty"
    assert (empty.producer_id, empty.producer_epoch) == (producer.id, producer.epoch)
    assert (empty.transaction_timeout_ms, empty.transaction_start_time_ms, empty.topics) == (54_321, -1, ())
    producer.write(places[2], b"a")
    producer.write(places[0], b"a")
    (ongoing,) = described(wire, name)
    assert ongoing.transaction_state == "Ongoing"
    assert ongoing.topics == (TopicData(topic=places[0][0], partitions=(0, 2)),)
    assert ongoing.transaction_start_time_ms > 0
    assert producer.commit() == NONE
    assert state_of(wire, name) == "CompleteCommit"
    producer.write(places[0], b"a")
    assert producer.abort() == NONE
    (ended,) = described(wire, name)
    assert (ended.transaction_state, ended.topics) == ("CompleteAbort", ())


def test_an_id_that_nobody_has_used_is_not_found(wire: Wire, producer: RawProducer) -> None:
    never, known = described(wire, "never", producer.name)
    assert (never.error_code, never.transactional_id) == (TRANSACTIONAL_ID_NOT_FOUND, "never")
    assert known.error_code == NONE


def test_transactions_are_listed_by_state_producer_age_and_name(
    wire: Wire, producer: RawProducer, place: Place
) -> None:
    name = producer.name
    assert listed(wire)[name] == (producer.id, "Empty")
    producer.write(place, b"a")
    found = {name: (producer.id, "Ongoing")}
    assert listed(wire, state_filters=("Ongoing", "PrepareCommit"), producer_id_filters=(producer.id,)) == found
    assert name not in listed(wire, state_filters=("Empty", "CompleteAbort"))
    assert listed(wire, producer_id_filters=(producer.id,)) == found
    assert listed(wire, producer_id_filters=(1 << 40,)) == {}
    assert name in listed(wire, duration_filter=0)
    assert name not in listed(wire, duration_filter=3_600_000)
    assert listed(wire, transactional_id_pattern=f"{name[:-3]}.*") == found
    assert name not in listed(wire, transactional_id_pattern=name[:-3])


def test_an_unknown_state_is_given_back_and_lists_nothing(wire: Wire, producer: RawProducer) -> None:
    answer = wire.ask(apis.LIST_TRANSACTIONS, 2, ListTransactionsRequest(state_filters=("Sleeping",)))
    assert (answer["unknown_state_filters"], answer["transaction_states"]) == (["Sleeping"], [])


def test_a_pattern_that_is_none_is_refused(wire: Wire, producer: RawProducer) -> None:
    request = ListTransactionsRequest(transactional_id_pattern="(")
    assert wire.ask(apis.LIST_TRANSACTIONS, 2, request)["error_code"] == INVALID_REGULAR_EXPRESSION


def test_a_pattern_does_not_stop_the_broker(wire: Wire, topic: str) -> None:
    """An engine that tries one way after the other would need longer than the world is old."""
    begun(wire, "a" * 60 + topic)
    request = ListTransactionsRequest(transactional_id_pattern="(a+)+b")
    assert wire.ask(apis.LIST_TRANSACTIONS, 2, request)["transaction_states"] == []


def test_the_producers_of_a_partition_are_described(wire: Wire, producer: RawProducer, place: Place) -> None:
    producer.write(place, b"a", b"b")
    (open_one,) = producers_of(wire, place)
    assert (open_one["producer_id"], open_one["producer_epoch"]) == (producer.id, producer.epoch)
    assert (open_one["last_sequence"], open_one["current_txn_start_offset"]) == (1, 0)
    assert producer.commit() == NONE
    (idle,) = producers_of(wire, place)
    assert (idle["producer_epoch"], idle["current_txn_start_offset"]) == (producer.epoch, -1)


def test_the_producers_of_an_unknown_partition_are_not(wire: Wire, place: Place) -> None:
    request = DescribeProducersRequest(topics=(TopicRequest(name=place[0], partition_indexes=(9,)),))
    ((found,),) = (each["partitions"] for each in wire.ask(apis.DESCRIBE_PRODUCERS, 0, request)["topics"])
    assert found["error_code"] == UNKNOWN_TOPIC_OR_PARTITION


def test_a_marker_by_hand_ends_what_is_open_in_one_partition(
    wire: Wire, operator: Wire, producer: RawProducer, places: list[Place]
) -> None:
    producer.write(places[0], b"a")
    producer.write(places[1], b"b")
    code = mark(operator, places[0], producer_id=producer.id, producer_epoch=producer.epoch)
    assert code == NONE
    read = read_committed(wire, places[0])
    assert (read.values, read.stable, read.aborted) == ([], 2, [(producer.id, 0)])
    assert read_committed(wire, places[1]).stable == 0


@pytest.mark.parametrize(("commits", "offset"), [(True, 5), (False, -1)])
def test_a_marker_by_hand_ends_what_a_group_waits_for(
    wire: Wire, operator: Wire, producer: RawProducer, place: Place, commits: bool, offset: int
) -> None:
    group = producer.name
    producer.take_along(group, {place: 5})
    (ongoing,) = described(wire, producer.name)
    (internal,) = ongoing.topics
    (index,) = internal.partitions
    code = mark(
        operator,
        (internal.topic, index),
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=commits,
    )
    assert code == NONE
    assert committed_offset(wire, group, place, require_stable=True) == (NONE, offset)


def test_a_marker_of_an_earlier_epoch_is_refused(
    wire: Wire, operator: Wire, producer: RawProducer, place: Place
) -> None:
    assert producer.init() == NONE
    producer.write(place, b"a")
    code = mark(operator, place, producer_id=producer.id, producer_epoch=producer.epoch - 1)
    assert code == INVALID_PRODUCER_EPOCH
    assert read_committed(wire, place).stable == 0


def test_a_marker_of_an_earlier_coordinator_is_refused(operator: Wire, producer: RawProducer, place: Place) -> None:
    who = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    producer.write(place, b"a")
    assert mark(operator, place, **who, coordinator_epoch=7) == NONE
    assert mark(operator, place, **who, coordinator_epoch=6) == TRANSACTION_COORDINATOR_FENCED
    assert mark(operator, place, **who, coordinator_epoch=7) == NONE


def test_a_marker_for_an_unknown_partition_is_refused(operator: Wire, producer: RawProducer, place: Place) -> None:
    assert mark(operator, (place[0], 9), producer_id=producer.id, producer_epoch=0) == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("commits", [True, False])
def test_a_client_cannot_write_a_marker(wire: Wire, producer: RawProducer, place: Place, commits: bool) -> None:
    producer.write(place, b"a")
    who = {"producer_id": producer.id, "producer_epoch": producer.epoch, "transaction_result": commits}
    assert mark(wire, place, **who) == CLUSTER_AUTHORIZATION_FAILED
    read = read_committed(wire, place)
    assert (read.values, read.stable) == ([], 0)
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"a"]
