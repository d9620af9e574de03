"""A transaction over the wire, in the protocol before KIP-890 and the one after it: what readers see, and when."""

from __future__ import annotations

import pytest

from conftest import BrokerFactory
from penstock.protocol import apis
from penstock.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.records.compression import Codec
from support.broker_process import BrokerProcess
from support.transactional import (
    READ_COMMITTED,
    Place,
    Protocol,
    RawProducer,
    begun,
    committed_offset,
    last_offset,
    read_answer,
    read_committed,
    state_of,
)
from support.wire import FETCH_BY_NAME, Wire, batch_of, fetch_request

NONE, UNSTABLE_OFFSET_COMMIT = 0, 88
READ_UNCOMMITTED = 0


@pytest.fixture
def producer(wire: Wire, topic: str, protocol: Protocol) -> RawProducer:
    return begun(wire, topic, protocol)


def delete_topic(wire: Wire, name: str) -> None:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=10_000)
    (deleted,) = wire.ask(apis.DELETE_TOPICS, 6, request)["responses"]
    assert deleted["error_code"] == NONE


def test_nothing_of_a_transaction_is_seen_before_its_end_and_all_of_it_after(
    wire: Wire, producer: RawProducer, places: list[Place]
) -> None:
    for place in places:
        producer.write(place, b"a", b"b")
    for place in places:
        read = read_committed(wire, place)
        assert (read.values, read.stable, read.end) == ([], 0, 2)
        assert last_offset(wire, place, READ_COMMITTED) == 0
        assert last_offset(wire, place, READ_UNCOMMITTED) == 2
    assert producer.commit() == NONE
    for place in places:
        read = read_committed(wire, place)
        assert (read.values, read.stable, read.end) == ([b"a", b"b"], 3, 3)
        assert (read.aborted, read.markers) == ([], [(2, True)])
        assert last_offset(wire, place, READ_COMMITTED) == 3


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_may_add_partitions_with_the_versions_that_brokers_use(
    wire: Wire, topic: str, places: list[Place], version: int
) -> None:
    """@platformatic/kafka does, and Kafka lets it."""
    producer = begun(wire, topic, Protocol.NEW)
    for commits in (True, False):
        assert producer.add_as_brokers_do(version, *places) == dict.fromkeys(places, NONE)
        for place in places:
            producer.write(place, b"a")
        assert producer.end(committed=commits) == NONE
    assert [read_committed(wire, place).values for place in places] == [[b"a"] for _ in places]


def test_an_aborted_transaction_is_listed_with_where_it_began(
    wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    wire.produce(topic, batch_of(b"before"))
    first = producer.write(place, b"a")
    aborted_by = producer.id
    wire.produce(topic, batch_of(b"between"))
    producer.write(place, b"b")
    assert producer.abort() == NONE
    wire.produce(topic, batch_of(b"after"))
    read = read_committed(wire, place)
    assert read.values == [b"before", b"between", b"after"]
    assert read.aborted == [(aborted_by, first)] == [(aborted_by, 1)]
    assert read.markers == [(4, False)]


def test_a_fetch_lists_only_the_aborted_transactions_that_concern_it(
    wire: Wire, producer: RawProducer, place: Place
) -> None:
    begins = []
    for number in range(5):
        begins.append((producer.id, producer.write(place, b"%d" % number)))
        assert (producer.abort() if number % 2 else producer.commit()) == NONE
    assert read_committed(wire, place).aborted == [begins[1], begins[3]]
    assert read_committed(wire, place, begins[2][1]).aborted == [begins[3]]
    assert read_committed(wire, place, begins[4][1]).aborted == []
    assert read_committed(wire, place).values == [b"0", b"2", b"4"]


def test_a_reader_that_reads_everything_is_told_of_no_aborted_transactions(
    wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    producer.write(place, b"a")
    assert producer.abort() == NONE
    answer = wire.fetch(topic, 0)
    assert answer["aborted_transactions"] is None
    assert answer["last_stable_offset"] == 2


def test_producers_take_turns_in_a_partition_and_each_ends_its_own(
    wire: Wire, protocol: Protocol, topic: str, place: Place
) -> None:
    one, two, three = (begun(wire, f"{topic}-{number}", protocol) for number in range(3))
    aborted = [(two.id, 1), (three.id, 2)]
    for number in range(3):
        for producer in (one, two, three):
            producer.write(place, b"%s-%d" % (producer.name[-1:].encode(), number))
    assert three.abort() == NONE
    assert read_committed(wire, place).values == []
    assert one.commit() == NONE
    read = read_committed(wire, place)
    assert (read.values, read.stable) == ([b"0-0"], 1), "the second one's transaction is still open"
    assert two.abort() == NONE
    read = read_committed(wire, place)
    assert read.values == [b"0-0", b"0-1", b"0-2"]
    assert sorted(read.aborted) == sorted(aborted)


def test_a_reader_that_waits_is_woken_by_the_end_of_the_transaction(
    broker: BrokerProcess, wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    producer.write(place, b"a")
    request = fetch_request([(topic, 0, 0)], FETCH_BY_NAME, max_wait_ms=30_000)
    request["isolation_level"] = READ_COMMITTED
    with Wire(broker.address) as waiting:
        asked = waiting.send(apis.FETCH, FETCH_BY_NAME, request)
        producer.write(place, b"b")
        assert not waiting.has_answer(0.2), "what is not committed is not worth an answer"
        assert producer.commit() == NONE
        assert read_answer(waiting.receive(apis.FETCH, FETCH_BY_NAME, asked)).values == [b"a", b"b"]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_compressed_batches_are_part_of_transactions(
    wire: Wire, topic: str, place: Place, protocol: Protocol, codec: Codec
) -> None:
    producer = begun(wire, topic, protocol)
    producer.write(place, b"a" * 100, b"b" * 100, codec=codec)
    assert producer.abort() == NONE
    producer.write(place, b"c" * 100, b"d" * 100, codec=codec)
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"c" * 100, b"d" * 100]


def test_an_old_producer_keeps_its_epoch_and_its_sequence(wire: Wire, topic: str, place: Place) -> None:
    producer = begun(wire, topic, Protocol.OLD)
    was = (producer.id, producer.epoch)
    for number in range(3):
        producer.write(place, b"%d" % number)
        assert producer.commit() == NONE
    assert (producer.id, producer.epoch) == was
    assert read_committed(wire, place).values == [b"0", b"1", b"2"]


def test_a_new_producer_is_given_the_next_epoch_at_every_end(wire: Wire, topic: str, place: Place) -> None:
    producer = begun(wire, topic, Protocol.NEW)
    assert producer.epoch == 0
    for epoch, commits in enumerate((True, False, False, True), start=1):
        producer.write(place, b"%d" % epoch)
        assert producer.end(committed=commits) == NONE
        assert producer.epoch == epoch
    assert read_committed(wire, place).values == [b"1", b"4"]


def test_an_abort_without_a_transaction_gives_a_new_producer_the_next_epoch(wire: Wire, topic: str) -> None:
    producer = begun(wire, topic, Protocol.NEW)
    assert producer.abort() == NONE
    assert producer.abort() == NONE
    assert producer.epoch == 2


def test_the_same_end_again_is_answered_as_the_first_time(wire: Wire, producer: RawProducer, place: Place) -> None:
    for commits in (True, False):
        producer.write(place, b"a")
        held = producer.held_end(committed=commits)
        assert producer.end(committed=commits) == NONE
        for _ in range(2):
            again = wire.ask(apis.END_TXN, producer.protocol.end, held)
            assert again["error_code"] == NONE
            if producer.protocol is Protocol.NEW:
                assert (again["producer_id"], again["producer_epoch"]) == (producer.id, producer.epoch)
    read = read_committed(wire, place)
    assert (read.values, len(read.markers)) == ([b"a"], 2)


def test_offsets_count_when_their_transaction_is_committed(wire: Wire, producer: RawProducer, place: Place) -> None:
    group = producer.name
    producer.take_along(group, {place: 5})
    assert committed_offset(wire, group, place) == (NONE, -1)
    assert producer.commit() == NONE
    assert committed_offset(wire, group, place, require_stable=True) == (NONE, 5)
    producer.take_along(group, {place: 9})
    assert committed_offset(wire, group, place) == (NONE, 5)
    assert producer.abort() == NONE
    assert committed_offset(wire, group, place, require_stable=True) == (NONE, 5)


def test_who_wants_a_stable_offset_is_told_to_wait_for_the_transaction(
    wire: Wire, producer: RawProducer, places: list[Place]
) -> None:
    group = producer.name
    producer.take_along(group, {places[0]: 5})
    assert committed_offset(wire, group, places[0], require_stable=True) == (UNSTABLE_OFFSET_COMMIT, -1)
    assert committed_offset(wire, group, places[1], require_stable=True) == (NONE, -1)
    assert producer.commit() == NONE
    assert committed_offset(wire, group, places[0], require_stable=True) == (NONE, 5)


def test_records_and_offsets_of_several_groups_end_together(
    wire: Wire, producer: RawProducer, places: list[Place]
) -> None:
    groups = [f"{producer.name}-{number}" for number in range(4)]
    producer.write(places[1], b"a")
    for number, group in enumerate(groups):
        producer.take_along(group, {places[0]: number, places[2]: number})
    assert producer.commit() == NONE
    assert read_committed(wire, places[1]).values == [b"a"]
    for number, group in enumerate(groups):
        assert committed_offset(wire, group, places[0]) == (NONE, number)
        assert committed_offset(wire, group, places[2]) == (NONE, number)


def test_the_next_transaction_begins_while_the_reader_has_not_caught_up(
    wire: Wire, producer: RawProducer, place: Place
) -> None:
    for number in range(20):
        producer.write(place, b"%d" % number)
        assert (producer.commit() if number % 3 else producer.abort()) == NONE
    assert read_committed(wire, place).values == [b"%d" % number for number in range(20) if number % 3]


def test_a_producer_may_write_outside_of_transactions_in_between(
    wire: Wire, topic: str, protocol: Protocol, place: Place
) -> None:
    """An idempotent producer, which has no transactional id, shares the partition with transactions."""
    producer = begun(wire, topic, protocol)
    other = wire.producer_id()
    for number in range(3):
        producer.write(place, b"in")
        plain = batch_of(b"out", producer_id=other, producer_epoch=0, base_sequence=number)
        assert wire.produce(topic, plain)["error_code"] == NONE
        assert producer.abort() == NONE
    assert read_committed(wire, place).values == [b"out"] * 3


def test_a_topic_that_is_deleted_meanwhile_does_not_keep_the_transaction_from_ending(
    wire: Wire, producer: RawProducer, places: list[Place], topic: str
) -> None:
    other = f"{topic}-other"
    wire.create_topic(other)
    producer.write(places[0], b"a")
    producer.write((other, 0), b"a")
    delete_topic(wire, other)
    assert producer.commit() == NONE
    assert state_of(wire, producer.name) == "CompleteCommit"
    assert read_committed(wire, places[0]).values == [b"a"]


def test_offsets_whose_topic_is_deleted_meanwhile_do_not_keep_the_transaction_from_ending(
    new_broker: BrokerFactory, protocol: Protocol
) -> None:
    broker = new_broker()
    place = ("orders", 0)
    with Wire(broker.address) as wire:
        wire.create_topic("orders")
        producer = begun(wire, "t", protocol)
        producer.write(place, b"a")
        producer.take_along("g", {place: 1})
        delete_topic(wire, "__consumer_offsets")
        assert producer.commit() == NONE
        assert state_of(wire, "t") == "CompleteCommit"
        assert producer.init() == NONE
        assert read_committed(wire, place).values == [b"a"]


def test_offsets_whose_topic_has_fewer_partitions_now_do_not_keep_the_transaction_from_ending(
    new_broker: BrokerFactory, protocol: Protocol
) -> None:
    broker = new_broker({"groups.offsets_partitions": 8})
    place = ("orders", 0)
    with Wire(broker.address) as wire:
        wire.create_topic("orders")
        producer = begun(wire, "t", protocol)
        producer.take_along("g", {place: 1})  # in partition 7
        delete_topic(wire, "__consumer_offsets")
    broker.settings["groups.offsets_partitions"] = 1
    broker.restart()
    with Wire(broker.address) as producer.wire:
        assert committed_offset(producer.wire, "g", place) == (NONE, -1)
        assert producer.commit() == NONE
        assert state_of(producer.wire, "t") == "CompleteCommit"
        assert producer.init() == NONE


def test_records_that_are_deleted_under_an_open_transaction_do_not_end_it(
    wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    producer.write(place, b"a")
    asked = DeleteRecordsTopic(name=topic, partitions=(DeleteRecordsPartition(partition_index=0, offset=-1),))
    wire.ask(apis.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=(asked,), timeout_ms=10_000))
    producer.write(place, b"b")
    wire.produce(topic, batch_of(b"outside"))
    assert (read_committed(wire, place, 1).values, last_offset(wire, place, READ_COMMITTED)) == ([], 1)
    assert producer.abort() == NONE
    assert read_committed(wire, place, 1).values == [b"outside"]
