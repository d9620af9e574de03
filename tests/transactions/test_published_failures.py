"""One test, or more, for each failure that published tests of this protocol have found: the table in
`docs/internals/transactions.md`. Requests that come late are in `test_late_requests.py`, crashes between the steps of
an end in `test_crash_points.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.transactional import (
    REFUSED,
    SHORT_MS,
    Place,
    Protocol,
    RawProducer,
    all_committed,
    begun,
    committed_offset,
    read_committed,
    state_of,
)
from support.waiting import until
from support.wire import Wire, batch_of

NONE, INVALID_PRODUCER_EPOCH, UNSTABLE_OFFSET_COMMIT = 0, 47, 88
PRODUCER_FENCED, TRANSACTION_ABORTABLE = 90, 120


# An aborted record is shown to a read_committed reader, or a committed one is not.


@pytest.mark.parametrize(("protocol", "how"), [(Protocol.OLD, "restart"), (Protocol.NEW, "kill")])
def test_what_was_aborted_stays_aborted_after_a_restart(
    new_broker: BrokerFactory, how: str, protocol: Protocol
) -> None:
    broker = new_broker({"log.checkpoint_ms": 200})
    with Wire(broker.address) as wire:
        wire.create_topic("orders", segment_bytes=1 << 14)
        place = ("orders", 0)
        producers = [begun(wire, f"p{number}", protocol) for number in range(3)]
        expected = []
        for number in range(60):
            for which, producer in enumerate(producers):
                producer.write(place, b"%d-%d " % (which, number) + b"x" * 100)
            for which, producer in enumerate(producers):
                commits = (number + which) % 3 == 0
                assert producer.end(committed=commits) == NONE
                expected += [b"%d-%d" % (which, number)] if commits else []
        producers[0].write(place, b"open")
        before = all_committed(wire, place)
        assert [value.split()[0] for value in before] == expected
    if how == "kill":
        broker.kill()
        broker.start()
    else:
        broker.restart()
    with Wire(broker.address) as wire:
        assert all_committed(wire, place) == before
        producer = producers[0]
        producer.wire = wire
        producer.write(place, b"open too")
        assert producer.commit() == NONE
        assert all_committed(wire, place) == [*before, b"open", b"open too"]


def test_the_last_stable_offset_never_goes_back(wire: Wire, topic: str, place: Place, protocol: Protocol) -> None:
    producers = [begun(wire, f"{topic}-{number}", protocol) for number in range(3)]
    stable = 0
    for number in range(30):
        producers[number % 3].write(place, b"a")
        if number % 2:
            ending = producers[(number + 1) % 3]
            ending.write(place, b"b")
            assert (ending.commit() if number % 4 == 1 else ending.abort()) == NONE
        read = read_committed(wire, place)
        assert stable <= read.stable <= read.end
        stable = read.stable


# Offsets are committed though the transaction is aborted, or the other way round.


@pytest.mark.parametrize("commits", [True, False])
def test_a_late_commit_of_offsets_is_not_part_of_any_transaction(
    wire: Wire, topic: str, place: Place, protocol: Protocol, commits: bool
) -> None:
    producer = begun(wire, topic, protocol)
    producer.take_along(topic, {place: 1})
    before = {"producer_id": producer.id, "producer_epoch": producer.epoch}
    assert producer.end(committed=commits) == NONE
    assert producer.commit_offsets(topic, {place: 99}, **before)[place] in REFUSED
    assert committed_offset(wire, topic, place, require_stable=True) == (NONE, 1 if commits else -1)
    if protocol is Protocol.NEW:  # an old producer's next transaction has the same epoch: it is what it says it is
        producer.write(place, b"second")
        assert producer.commit_offsets(topic, {place: 99}, **before)[place] in REFUSED
        assert producer.commit() == NONE
    assert committed_offset(wire, topic, place, require_stable=True) == (NONE, 1 if commits else -1)


@pytest.mark.parametrize(("protocol", "commits"), [(Protocol.OLD, False), (Protocol.NEW, True)])
def test_offsets_follow_their_transaction_over_a_crash(
    new_broker: BrokerFactory, protocol: Protocol, commits: bool
) -> None:
    broker = new_broker()
    place = ("orders", 0)
    with Wire(broker.address) as wire:
        wire.create_topic("orders")
        producer = begun(wire, "p", protocol)
        producer.take_along("g", {place: 5})
        assert producer.commit() == NONE
        producer.take_along("g", {place: 9})
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        assert committed_offset(wire, "g", place) == (NONE, 5)
        assert committed_offset(wire, "g", place, require_stable=True) == (UNSTABLE_OFFSET_COMMIT, -1)
        producer.wire = wire
        assert producer.end(committed=commits) == NONE
        assert committed_offset(wire, "g", place, require_stable=True) == (NONE, 9 if commits else 5)
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        assert committed_offset(wire, "g", place, require_stable=True) == (NONE, 9 if commits else 5)


def test_a_commit_outside_of_the_transaction_that_came_later_stands(
    wire: Wire, topic: str, place: Place, protocol: Protocol
) -> None:
    producer, other = begun(wire, topic, protocol), begun(wire, f"{topic}-other", protocol)
    producer.take_along(topic, {place: 5})
    other.take_along(topic, {place: 8})
    assert other.commit() == NONE
    assert committed_offset(wire, topic, place) == (NONE, 8)
    assert producer.commit() == NONE
    assert committed_offset(wire, topic, place, require_stable=True) == (NONE, 8)


# A producer that was replaced goes on writing.


def test_a_producer_that_was_replaced_does_nothing_any_more(
    broker: BrokerProcess, wire: Wire, topic: str, places: list[Place], protocol: Protocol
) -> None:
    zombie = begun(wire, topic, protocol)
    zombie.write(places[0], b"zombie")
    zombie.take_along(topic, {places[0]: 7})
    late = [zombie.held(place, b"late") for place in places]
    successor = begun(wire, topic, protocol)
    assert successor.epoch > zombie.epoch
    for held in late:
        assert zombie.send(held)["error_code"] == INVALID_PRODUCER_EPOCH
    assert zombie.add(places[1]) == {places[1]: PRODUCER_FENCED}
    assert zombie.add_offsets(topic) == PRODUCER_FENCED
    assert zombie.commit_offsets(topic, {places[0]: 8})[places[0]] in REFUSED
    assert zombie.commit() == PRODUCER_FENCED
    assert zombie.abort() == PRODUCER_FENCED
    assert zombie.bump() == PRODUCER_FENCED
    successor.write(places[0], b"successor")
    assert zombie.abort() == PRODUCER_FENCED
    assert zombie.bump() == PRODUCER_FENCED
    assert successor.commit() == NONE
    assert read_committed(wire, places[0]).values == [b"successor"]
    assert committed_offset(wire, topic, places[0], require_stable=True) == (NONE, -1)


def test_of_two_that_begin_at_once_one_is_left(broker: BrokerProcess, wire: Wire, topic: str, place: Place) -> None:
    with Wire(broker.address) as other_wire:
        producers = [RawProducer(wire, topic), RawProducer(other_wire, topic)]
        for number in range(20):
            threads = [threading.Thread(target=producer.init) for producer in producers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert producers[0].epoch != producers[1].epoch
            codes = [producer.produce(place, b"%d" % number)["error_code"] for producer in producers]
            assert sorted(codes) == [NONE, INVALID_PRODUCER_EPOCH]
            (left,) = (producer for producer, code in zip(producers, codes, strict=True) if code == NONE)
            assert left.epoch == max(producer.epoch for producer in producers)
    assert read_committed(wire, place).values == []


# Consumers are stuck because a producer died.


def test_readers_go_on_when_the_time_of_a_dead_producer_is_over(
    broker: BrokerProcess, wire: Wire, topic: str, place: Place, protocol: Protocol
) -> None:
    dead = begun(wire, topic, protocol, SHORT_MS)
    dead.write(place, b"dead")
    dead.take_along(topic, {place: 7})
    wire.produce(topic, batch_of(b"alive"))
    read = read_committed(wire, place, max_wait_ms=20_000)
    assert read.values == [b"alive"]
    until(lambda: state_of(wire, topic) == "CompleteAbort", "the end is complete")
    assert committed_offset(wire, topic, place, require_stable=True) == (NONE, -1)


def test_readers_go_on_when_the_broker_was_killed_meanwhile(new_broker: BrokerFactory, protocol: Protocol) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic("orders")
        dead = begun(wire, "p", protocol, timeout_ms=1000)
        dead.write(("orders", 0), b"dead")
        wire.produce("orders", batch_of(b"alive"))
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        assert read_committed(wire, ("orders", 0), max_wait_ms=20_000).values == [b"alive"]


def test_a_new_producer_whose_time_was_over_aborts_and_goes_on(wire: Wire, topic: str, place: Place) -> None:
    producer = begun(wire, topic, Protocol.NEW, SHORT_MS)
    producer.write(place, b"slow")
    until(lambda: state_of(wire, topic) == "CompleteAbort", "the transaction's time is over")
    assert producer.commit() == TRANSACTION_ABORTABLE
    assert producer.abort() == NONE
    producer.write(place, b"quick")
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"quick"]


def test_an_old_producer_whose_time_was_over_is_fenced(wire: Wire, topic: str, place: Place) -> None:
    producer = begun(wire, topic, Protocol.OLD, SHORT_MS)
    producer.write(place, b"slow")
    until(lambda: state_of(wire, topic) == "CompleteAbort", "the transaction's time is over")
    assert producer.commit() == PRODUCER_FENCED
    assert producer.abort() == PRODUCER_FENCED
    assert read_committed(wire, place).values == []


# An acknowledged record is told a wrong offset, or is not there.


def test_a_batch_sent_again_in_its_transaction_is_told_where_its_first_copy_is(
    wire: Wire, topic: str, place: Place, protocol: Protocol
) -> None:
    wire.produce(topic, batch_of(b"before"))
    producer = begun(wire, topic, protocol)
    batches = []
    for number in range(5):
        held = producer.held(place, b"%d" % number)
        if protocol is Protocol.OLD and not number:
            assert producer.add(place) == {place: NONE}
        batches.append((held, producer.send(held)["base_offset"]))
    assert [offset for _, offset in batches] == [1, 2, 3, 4, 5]
    for held, offset in batches:
        again = producer.send(held)
        assert (again["error_code"], again["base_offset"]) == (NONE, offset)
    assert producer.commit() == NONE
    assert read_committed(wire, place).values == [b"before", *(b"%d" % number for number in range(5))]


def test_producers_in_a_crowd_lose_nothing_and_double_nothing(
    broker: BrokerProcess, wire: Wire, topic: str, places: list[Place]
) -> None:
    committed: list[bytes] = []
    aborted: list[bytes] = []

    def work(number: int) -> None:
        with Wire(broker.address) as own:
            producer = begun(own, f"{topic}-{number}", list(Protocol)[number % 2])
            for turn in range(15):
                value = b"%d-%d" % (number, turn)
                for place in places:
                    producer.write(place, value)
                if (number + turn) % 3:
                    assert producer.commit() == NONE
                    committed.append(value)
                else:
                    assert producer.abort() == NONE
                    aborted.append(value)

    run_together([lambda number=number: work(number) for number in range(6)])  # type: ignore[misc]
    for place in places:
        found = all_committed(wire, place)
        assert sorted(found) == sorted(committed)
        for number in range(6):
            own = [value for value in found if value.startswith(b"%d-" % number)]
            assert own == sorted(own, key=lambda value: int(value.split(b"-")[1]))
    assert len(aborted) == 30


def run_together(works: list[Callable[[], None]]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
