"""Requests that come late, or twice: the first two failures of the table in `docs/internals/transactions.md`.

A request is delayed by holding it back: it is made when its producer would have sent it, and sent when the test says.
"""

from __future__ import annotations

import pytest

from penstock.protocol import apis
from support.broker_process import BrokerProcess
from support.transactional import (
    READ_COMMITTED,
    REFUSED,
    SHORT_MS,
    Place,
    Protocol,
    begun,
    last_offset,
    read_committed,
    state_of,
)
from support.waiting import until
from support.wire import Wire

NONE, OUT_OF_ORDER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE = 0, 45, 47, 48
PRODUCER_FENCED, TRANSACTION_ABORTABLE = 90, 120


# A commit or abort that was delayed takes effect on the producer's next transaction.


@pytest.mark.parametrize("late_commits", [True, False])
@pytest.mark.parametrize("second_commits", [True, False])
def test_a_late_end_does_not_end_the_next_transaction(
    wire: Wire, topic: str, place: Place, late_commits: bool, second_commits: bool
) -> None:
    producer = begun(wire, topic)
    producer.write(place, b"first")
    late = producer.held_end(committed=late_commits)
    assert producer.end(committed=late_commits) == NONE
    producer.write(place, b"second")
    assert wire.ask(apis.END_TXN, 5, late)["error_code"] == PRODUCER_FENCED
    assert state_of(wire, topic) == "Ongoing"
    producer.write(place, b"of the second")
    assert producer.end(committed=second_commits) == NONE
    assert wire.ask(apis.END_TXN, 5, late)["error_code"] == PRODUCER_FENCED
    first = [b"first"] if late_commits else []
    second = [b"second", b"of the second"] if second_commits else []
    assert read_committed(wire, place).values == first + second


@pytest.mark.parametrize("late_commits", [True, False])
def test_a_late_end_does_not_change_what_was_decided_meanwhile(
    wire: Wire, topic: str, place: Place, late_commits: bool
) -> None:
    """The producer gave up waiting and decided otherwise."""
    producer = begun(wire, topic)
    producer.write(place, b"first")
    late = producer.held_end(committed=late_commits)
    assert producer.end(committed=not late_commits) == NONE
    assert wire.ask(apis.END_TXN, 5, late)["error_code"] in (TRANSACTION_ABORTABLE, INVALID_TXN_STATE)
    producer.write(place, b"second")
    assert wire.ask(apis.END_TXN, 5, late)["error_code"] == PRODUCER_FENCED
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == ([] if late_commits else [b"first"]) + [b"second"]


def test_a_late_end_of_an_old_producer_cannot_be_told_from_one_in_time(wire: Wire, topic: str, place: Place) -> None:
    """What KIP-890 is for, and what only producers that speak it are safe from."""
    producer = begun(wire, topic, Protocol.OLD)
    producer.write(place, b"first")
    late = producer.held_end(committed=True)
    assert producer.commit() == NONE
    producer.write(place, b"second")
    assert wire.ask(apis.END_TXN, producer.protocol.end, late)["error_code"] == NONE
    assert state_of(wire, topic) == "CompleteCommit"


def test_an_end_sent_twice_at_once_ends_one_transaction(broker: BrokerProcess, wire: Wire, topic: str) -> None:
    """A retry on another connection, while the first one is being carried out."""
    wire.create_topic(topic, partitions=20)
    places = [(topic, partition) for partition in range(20)]
    with Wire(broker.address) as other:
        for number in range(10):
            producer = begun(wire, topic)
            for place in places:
                producer.write(place, b"%d" % number)
            held = producer.held_end(committed=True)
            asked = other.send(apis.END_TXN, 5, held)
            assert producer.commit() == NONE
            again = other.receive(apis.END_TXN, 5, asked)
            assert (again["error_code"], again["producer_epoch"]) == (NONE, producer.epoch)
    for place in places:
        read = read_committed(wire, place)
        assert read.values == [b"%d" % number for number in range(10)]
        assert len(read.markers) == 10


# A produce request that was delayed lands after the end and belongs to no transaction, or to the next one.


@pytest.mark.parametrize("commits", [True, False])
def test_a_late_batch_does_not_open_a_transaction_that_nobody_ends(
    wire: Wire, topic: str, places: list[Place], protocol: Protocol, commits: bool
) -> None:
    producer = begun(wire, topic, protocol)
    written, added, untouched = places
    producer.write(written, b"in time")
    if protocol is Protocol.OLD:
        assert producer.add(added) == {added: NONE}
    late = {place: producer.held(place, b"late") for place in places}
    assert producer.end(committed=commits) == NONE
    for place in (written, added, untouched):
        assert producer.send(late[place])["error_code"] in REFUSED
        assert last_offset(wire, place, READ_COMMITTED) == read_committed(wire, place).end
        assert b"late" not in read_committed(wire, place).values


def test_a_late_batch_does_not_become_part_of_the_next_transaction(wire: Wire, topic: str, places: list[Place]) -> None:
    producer = begun(wire, topic, Protocol.NEW)
    producer.write(places[0], b"first")
    late = {place: producer.held(place, b"late") for place in places}
    assert producer.abort() == NONE
    producer.write(places[0], b"second")
    producer.write(places[1], b"second")
    for place in places:
        assert producer.send(late[place])["error_code"] == INVALID_PRODUCER_EPOCH
    assert producer.commit() == NONE
    assert [read_committed(wire, place).values for place in places] == [[b"second"], [b"second"], []]


def test_a_late_copy_of_an_old_producers_batch_does_not_become_part_of_its_next_transaction(
    wire: Wire, topic: str, place: Place
) -> None:
    """Its epoch is that of the next transaction, but its place among the records is taken."""
    producer = begun(wire, topic, Protocol.OLD)
    assert producer.add(place) == {place: NONE}
    copy = producer.held(place, b"first")
    assert producer.send(copy)["base_offset"] == 0
    assert producer.abort() == NONE
    producer.write(place, b"second")
    assert producer.send(copy)["error_code"] == OUT_OF_ORDER
    assert producer.commit() == NONE
    assert producer.send(copy)["error_code"] in REFUSED
    assert read_committed(wire, place).values == [b"second"]


def test_an_old_producer_that_uses_the_sequences_of_an_aborted_transaction_again_loses_nothing(
    wire: Wire, topic: str, place: Place
) -> None:
    """It was told that the first batch was not written. Success, at the offset of the aborted records, would lose the
    second.
    """
    producer = begun(wire, topic, Protocol.OLD)
    assert producer.add(place) == {place: NONE}
    assert producer.produce(place, b"first", b"first too", base_sequence=0)["base_offset"] == 0
    assert producer.abort() == NONE
    assert producer.add(place) == {place: NONE}
    again = producer.produce(place, b"second", b"second too", base_sequence=0)
    assert (again["error_code"], again["base_offset"]) == (OUT_OF_ORDER, -1)
    # What clients do then.
    assert producer.abort() == NONE
    assert producer.bump() == NONE
    producer.write(place, b"second", b"second too")
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"second", b"second too"]


def test_an_old_producer_does_not_leave_out_a_batch_that_may_come_late(wire: Wire, topic: str, place: Place) -> None:
    """Whether it arrives or not: the producer has to take its next epoch, and then it is refused."""
    producer = begun(wire, topic, Protocol.OLD)
    producer.write(place, b"first")
    producer.held(place, b"late")
    assert producer.abort() == NONE
    assert producer.add(place) == {place: NONE}
    assert producer.produce(place, b"second")["error_code"] == OUT_OF_ORDER


def test_a_late_batch_of_an_old_producer_that_took_its_next_epoch_is_refused(
    wire: Wire, topic: str, place: Place
) -> None:
    producer = begun(wire, topic, Protocol.OLD)
    assert producer.add(place) == {place: NONE}
    late = producer.held(place, b"late")
    assert producer.abort() == NONE
    assert producer.bump() == NONE
    producer.write(place, b"second")
    assert producer.send(late)["error_code"] == INVALID_PRODUCER_EPOCH
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"second"]


def test_a_batch_that_is_late_for_a_transaction_aborted_by_time_is_refused(
    wire: Wire, topic: str, places: list[Place], protocol: Protocol
) -> None:
    producer = begun(wire, topic, protocol, SHORT_MS)
    producer.write(places[0], b"a")
    if protocol is Protocol.OLD:
        assert producer.add(places[1]) == {places[1]: NONE}
    late = [producer.held(place, b"late") for place in places[:2]]
    until(lambda: state_of(wire, topic) == "CompleteAbort", "the transaction's time is over")
    for held in late:
        assert producer.send(held)["error_code"] in REFUSED
    for place in places:
        read = read_committed(wire, place)
        assert (read.values, read.stable) == ([], read.end)
