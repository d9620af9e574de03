"""Requests that are wrong, late or from somebody else: Kafka's error code, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import BrokerFactory
from groups.test_wire_groups import joined, synced
from penstock.protocol import apis
from penstock.protocol.messages.find_coordinator import FindCoordinatorRequest
from support.transactional import (
    Place,
    Protocol,
    RawProducer,
    begun,
    committed_offset,
    read_committed,
    state_of,
)
from support.wire import Wire, batch_of

NONE, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, INVALID_TOPIC = 0, 3, 12, 17
ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, TOPIC_AUTHORIZATION_FAILED = 22, 24, 25, 29
INVALID_REQUIRED_ACKS, INVALID_REQUEST, POLICY_VIOLATION = 21, 42, 44
OUT_OF_ORDER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 45, 47, 48, 49
INVALID_TRANSACTION_TIMEOUT, OPERATION_NOT_ATTEMPTED, INVALID_RECORD, PRODUCER_FENCED = 50, 55, 87, 90
TRANSACTION_ABORTABLE = 120


@pytest.fixture
def producer(wire: Wire, topic: str, protocol: Protocol) -> RawProducer:
    return begun(wire, topic, protocol)


@pytest.fixture
def old(wire: Wire, topic: str) -> RawProducer:
    return begun(wire, topic, Protocol.OLD)


@pytest.fixture
def new(wire: Wire, topic: str) -> RawProducer:
    return begun(wire, topic, Protocol.NEW)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"transactional_id": ""}, INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, INVALID_REQUEST),
        ({"producer_epoch": 5}, INVALID_REQUEST),
    ],
)
def test_a_producer_that_begins_with_nonsense_is_refused(
    wire: Wire, topic: str, protocol: Protocol, changed: dict[str, Any], code: int
) -> None:
    producer = RawProducer(wire, topic, protocol)
    assert producer.init(**changed) == code
    assert producer.init() == NONE
    assert producer.epoch == 0


def test_a_producer_that_names_a_wrong_id_or_epoch_is_fenced(wire: Wire, producer: RawProducer) -> None:
    assert producer.init(producer_id=producer.id + 1000, producer_epoch=0) == PRODUCER_FENCED
    assert producer.init(producer_id=producer.id, producer_epoch=7) == PRODUCER_FENCED
    assert producer.epoch == 0
    assert producer.bump() == NONE
    assert producer.epoch == 1


def test_versions_before_the_word_fenced_are_told_of_the_epoch(wire: Wire, old: RawProducer, place: Place) -> None:
    begun(wire, old.name, Protocol.OLD)
    assert old.add(place, version=1) == {place: INVALID_PRODUCER_EPOCH}
    assert old.add(place, version=2) == {place: PRODUCER_FENCED}
    assert old.add_offsets("g", version=1) == INVALID_PRODUCER_EPOCH
    assert old.add_offsets("g", version=2) == PRODUCER_FENCED
    assert old.end(committed=True, version=1) == INVALID_PRODUCER_EPOCH
    assert old.end(committed=True, version=2) == PRODUCER_FENCED


def test_who_asks_for_its_next_epoch_twice_is_answered_twice_the_same(producer: RawProducer) -> None:
    """KIP-360: the first answer may have been lost."""
    before = producer.epoch
    assert producer.bump() == NONE
    assert producer.epoch == before + 1
    assert producer.init(producer_id=producer.id, producer_epoch=before) == NONE
    assert producer.epoch == before + 1


def test_who_was_replaced_is_not_given_another_epoch(wire: Wire, producer: RawProducer) -> None:
    begun(wire, producer.name, producer.protocol)
    assert producer.bump() == PRODUCER_FENCED


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"v3_and_below_transactional_id": ""}, INVALID_REQUEST),
        ({"v3_and_below_transactional_id": "nobody"}, INVALID_PRODUCER_ID_MAPPING),
        ({"v3_and_below_producer_id": 1 << 40}, INVALID_PRODUCER_ID_MAPPING),
        ({"v3_and_below_producer_epoch": 3}, PRODUCER_FENCED),
        ({"v3_and_below_producer_epoch": -1}, PRODUCER_FENCED),
    ],
)
def test_partitions_are_added_by_the_producer_of_the_id_alone(
    wire: Wire, old: RawProducer, place: Place, changed: dict[str, Any], code: int
) -> None:
    assert old.add(place, **changed) == {place: code}
    assert state_of(wire, old.name) == "Empty"


def test_all_partitions_are_added_or_none(wire: Wire, old: RawProducer, places: list[Place], topic: str) -> None:
    asked = [*places, (topic, 3), ("not-there", 0), (topic, -1)]
    assert old.add(*asked) == dict.fromkeys(places, OPERATION_NOT_ATTEMPTED) | dict.fromkeys(
        asked[3:], UNKNOWN_TOPIC_OR_PARTITION
    )
    assert state_of(wire, old.name) == "Empty"
    assert old.produce(places[0], b"a")["error_code"] == TRANSACTION_ABORTABLE


def test_nobody_adds_internal_topics(wire: Wire, old: RawProducer, place: Place) -> None:
    wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=old.name, key_type=0))
    internal = [("__consumer_offsets", 0), ("__transaction_state", 0)]
    assert old.add(place, *internal) == {place: OPERATION_NOT_ATTEMPTED} | dict.fromkeys(
        internal, TOPIC_AUTHORIZATION_FAILED
    )


@pytest.mark.parametrize("internal", ["__consumer_offsets", "__transaction_state"])
def test_nobody_writes_to_internal_topics(wire: Wire, producer: RawProducer, internal: str) -> None:
    wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=producer.name, key_type=0))
    assert producer.produce((internal, 0), b"forged")["error_code"] == INVALID_TOPIC
    assert state_of(wire, producer.name) == "Empty"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"transactional_id": ""}, INVALID_REQUEST),
        ({"transactional_id": "nobody"}, INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": 1 << 40}, INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": 9}, PRODUCER_FENCED),
    ],
)
@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_is_ended_by_its_producer_alone(
    wire: Wire, producer: RawProducer, place: Place, changed: dict[str, Any], code: int, commits: bool
) -> None:
    producer.write(place, b"a")
    assert producer.end(committed=commits, **changed) == code
    assert state_of(wire, producer.name) == "Ongoing"
    assert producer.commit() == NONE


def test_there_is_nothing_to_end_before_the_first_transaction(old: RawProducer, wire: Wire, topic: str) -> None:
    assert old.commit() == INVALID_TXN_STATE
    assert old.abort() == INVALID_TXN_STATE
    new = begun(wire, f"{topic}-new", Protocol.NEW)
    assert new.commit() == INVALID_TXN_STATE


def test_what_is_committed_cannot_be_aborted_and_the_other_way_round(
    wire: Wire, producer: RawProducer, place: Place
) -> None:
    for commits in (True, False):
        producer.write(place, b"a")
        other_way = producer.held_end(committed=not commits)
        assert producer.end(committed=commits) == NONE
        answer = wire.ask(apis.END_TXN, producer.protocol.end, other_way)
        was_aborted_for_it = producer.protocol is Protocol.NEW and not commits
        assert answer["error_code"] == (TRANSACTION_ABORTABLE if was_aborted_for_it else INVALID_TXN_STATE)
    assert read_committed(wire, place).values == [b"a"]


def test_a_new_producer_does_not_commit_twice_what_it_knows_to_be_committed(new: RawProducer, place: Place) -> None:
    new.write(place, b"a")
    assert new.commit() == NONE
    assert new.commit() == INVALID_TXN_STATE


@pytest.mark.parametrize(("version", "code"), [(10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE)])
def test_an_old_producer_does_not_write_to_what_it_has_not_added(
    wire: Wire, old: RawProducer, places: list[Place], version: int, code: int
) -> None:
    assert old.send(old.held(places[0], b"a"), version)["error_code"] == code
    old.write(places[1], b"b")
    assert old.send(old.held(places[0], b"a", base_sequence=0), version)["error_code"] == code
    assert old.commit() == NONE
    assert (read_committed(wire, places[0]).end, read_committed(wire, places[1]).values) == (0, [b"b"])


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"transactional_id": "nobody"}, INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": 1 << 40}, INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": 9}, INVALID_PRODUCER_EPOCH),
        ({"transactional_id": None}, INVALID_TXN_STATE),
    ],
)
def test_a_batch_of_nobodys_transaction_is_refused(
    wire: Wire, producer: RawProducer, places: list[Place], changed: dict[str, Any], code: int
) -> None:
    if producer.protocol is Protocol.OLD:
        producer.add(places[0])
    assert producer.produce(places[0], b"a", **changed)["error_code"] == code
    assert read_committed(wire, places[0]).end == 0


def test_a_batch_outside_of_the_transaction_that_its_producer_has_open_is_refused(
    wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    producer.write(place, b"a")
    assert producer.produce(place, b"b", attributes=0)["error_code"] == INVALID_TXN_STATE
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"a"]


def test_a_batch_that_asks_for_strange_acks_begins_no_transaction(wire: Wire, new: RawProducer, place: Place) -> None:
    assert new.produce(place, b"a", acks=2)["error_code"] == INVALID_REQUIRED_ACKS
    assert state_of(wire, new.name) == "Empty"


def test_producers_do_not_write_markers(wire: Wire, producer: RawProducer, place: Place) -> None:
    producer.write(place, b"a")
    assert producer.produce(place, b"forged", attributes=0x30)["error_code"] == INVALID_RECORD
    assert read_committed(wire, place).stable == 0


def test_a_gap_in_a_transaction_is_refused_and_a_repeat_is_known(
    wire: Wire, producer: RawProducer, place: Place
) -> None:
    assert producer.write(place, b"a") == 0
    assert producer.produce(place, b"b", base_sequence=2)["error_code"] == OUT_OF_ORDER
    again = producer.produce(place, b"a", base_sequence=0)
    assert (again["error_code"], again["base_offset"]) == (NONE, 0)
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"a"]


def test_offsets_of_a_group_that_was_not_added_are_refused(wire: Wire, old: RawProducer, place: Place) -> None:
    assert old.commit_offsets("g-not-added", {place: 5}) == {place: INVALID_TXN_STATE}
    assert old.add_offsets("g-not-added-either") == NONE
    if old.commit_offsets("g-not-added", {place: 5}) != {place: NONE}:  # both may lie in the same internal partition
        assert committed_offset(wire, "g-not-added", place, require_stable=True) == (NONE, -1)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"transactional_id": ""}, INVALID_REQUEST),
        ({"transactional_id": "nobody"}, INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": 1 << 40}, INVALID_PRODUCER_ID_MAPPING),
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"generation_id": 3, "member_id": "somebody"}, UNKNOWN_MEMBER_ID),
        ({"metadata": "x" * 5000}, OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_offsets_are_committed_by_the_producer_and_for_the_group_as_they_are(
    wire: Wire, producer: RawProducer, place: Place, changed: dict[str, Any], code: int
) -> None:
    group = producer.name
    producer.take_along(group, {place: 1})
    assert producer.commit_offsets(group, {place: 5}, **changed) == {place: code}
    assert producer.commit() == NONE
    assert committed_offset(wire, group, place) == (NONE, 1)


def test_a_member_of_the_group_commits_in_its_generation_alone(wire: Wire, producer: RawProducer, place: Place) -> None:
    """KIP-447: that a member has lost its partitions shows in its generation, not in its producer's epoch."""
    group = producer.name
    wire.ask(apis.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group, key_type=0))
    me = joined(wire, group)
    assert synced(wire, group, me, {me["member_id"]: b"all"})["error_code"] == NONE
    who = {"member_id": me["member_id"], "generation_id": me["generation_id"]}
    producer.take_along(group, {place: 5}, **who)
    stale = who | {"generation_id": me["generation_id"] - 1}
    assert producer.commit_offsets(group, {place: 6}, **stale) == {place: ILLEGAL_GENERATION}
    assert producer.commit_offsets(group, {place: 6}, **who | {"member_id": "other"}) == {place: UNKNOWN_MEMBER_ID}
    assert producer.commit() == NONE
    assert committed_offset(wire, group, place) == (NONE, 5)


@pytest.mark.parametrize("epoch", [1, 9])
def test_offsets_of_another_epoch_are_refused(wire: Wire, producer: RawProducer, place: Place, epoch: int) -> None:
    assert producer.init() == NONE
    assert producer.init() == NONE
    group = producer.name
    producer.take_along(group, {place: 1})
    code = producer.commit_offsets(group, {place: 5}, producer_epoch=epoch)[place]
    assert code in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
    assert producer.commit() == NONE
    assert committed_offset(wire, group, place) == (NONE, 1)


def test_an_unknown_partition_does_not_keep_the_others_from_being_committed(
    wire: Wire, producer: RawProducer, place: Place, topic: str
) -> None:
    group, missing = producer.name, (topic, 17)
    producer.take_along(group, {place: 1})
    codes = producer.commit_offsets(group, {place: 5, missing: 6, ("nowhere", 0): 7})
    assert codes == {place: NONE, missing: UNKNOWN_TOPIC_OR_PARTITION, ("nowhere", 0): UNKNOWN_TOPIC_OR_PARTITION}
    assert producer.commit() == NONE
    assert committed_offset(wire, group, place) == (NONE, 5)


def test_a_batch_without_an_id_of_a_producer_is_no_part_of_a_transaction(wire: Wire, topic: str, place: Place) -> None:
    forged = batch_of(b"a", attributes=0x10)
    assert wire.produce(topic, forged)["error_code"] == INVALID_RECORD
    assert wire.produce(topic, forged, transactional_id=topic)["error_code"] == INVALID_PRODUCER_ID_MAPPING
    assert read_committed(wire, place).end == 0


def test_what_grows_is_bounded(new_broker: BrokerFactory) -> None:
    settings = {
        "transactions.state_partitions": 1,
        "transactions.ids_per_partition": 2,
        "transactions.partitions_per_transaction": 2,
    }
    with Wire(new_broker(settings).address) as wire:
        wire.create_topic("orders", partitions=3)
        places = [("orders", partition) for partition in range(3)]
        first, second, third = (RawProducer(wire, name, Protocol.NEW) for name in "abc")
        assert [first.init(), second.init(), third.init()] == [NONE, NONE, POLICY_VIOLATION]
        assert first.init() == NONE
        first.write(places[0], b"a")
        first.write(places[1], b"a")
        assert first.produce(places[2], b"a")["error_code"] == POLICY_VIOLATION
        assert set(second.add(*places).values()) == {POLICY_VIOLATION}
        assert first.commit() == NONE
        assert [read_committed(wire, place).values for place in places] == [[b"a"], [b"a"], []]
