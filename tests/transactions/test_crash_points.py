"""The broker dies between two steps of the end of a transaction: whatever it left behind, all of the transaction counts
or nothing of it.

The steps are appends to logs, in this order: Prepare, the markers in any order, Complete. So what a crash leaves is
what a broker has that was killed after the end, without the last batch of some of its logs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.records.batch import read_header
from support.broker_process import BrokerProcess
from support.logs import split
from support.transactional import (
    Place,
    Protocol,
    RawProducer,
    begun,
    committed_offset,
    read_committed,
    state_of,
)
from support.waiting import until
from support.wire import Wire

SETTINGS = {
    "log.checkpoint_ms": 3_600_000,
    "transactions.state_partitions": 1,
    "groups.offsets_partitions": 1,
}
NONE, UNSTABLE_OFFSET_COMMIT = 0, 88
PLACES: list[Place] = [("orders", 0), ("orders", 1)]
STATE, OFFSETS = "__transaction_state-0", "__consumer_offsets-0"
MARKED = ("orders-0", "orders-1", OFFSETS)


class Left:
    """A folder of a broker that was killed after a transaction had ended, and the producer of that transaction."""

    def __init__(self, data: Path, producer: RawProducer, is_commit: bool) -> None:
        self.data = data
        self.producer = producer
        self.is_commit = is_commit


ENDS = [(Protocol.NEW, True), (Protocol.NEW, False), (Protocol.OLD, True)]


@pytest.fixture(scope="module", params=ENDS, ids=lambda it: f"{it[0].name}-{it[1]}")
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Left:
    protocol, is_commit = request.param
    broker = BrokerProcess(tmp_path_factory.mktemp("left"), SETTINGS).start()
    try:
        with Wire(broker.address) as wire:
            wire.create_topic("orders", partitions=2)
            producer = begun(wire, "p", protocol)
            for place in PLACES:
                producer.write(place, b"before")
            producer.take_along("g", {PLACES[0]: 1})
            assert producer.commit() == NONE
            for place in PLACES:
                producer.write(place, b"a", b"b")
            producer.take_along("g", {PLACES[0]: 2})
            assert producer.end(committed=is_commit) == NONE
            assert state_of(wire, "p").startswith("Complete")
    finally:
        broker.kill()
    return Left(broker.data, producer, is_commit)


@pytest.fixture
def broker_on_a_copy(left: Left, tmp_path: Path) -> Iterator[BrokerProcess]:
    """Not started yet."""
    shutil.copytree(left.data, tmp_path / "data")
    broker = BrokerProcess(tmp_path, SETTINGS)
    yield broker
    broker.kill()


def cut(broker: BrokerProcess, log: str, batches: int = 1) -> None:
    """Takes the last batches away, as if they had never been written."""
    (segment,) = (broker.data / "logs" / log).glob("*.log")
    content = segment.read_bytes()
    kept = split(content)[:-batches]
    assert read_header(split(content)[-1]).is_control or log == STATE
    segment.write_bytes(b"".join(kept))


@pytest.mark.parametrize(
    "written",
    [(), ("orders-0",), ("orders-1", OFFSETS), (OFFSETS,), MARKED],
    ids=lambda written: "+".join(written) or "none",
)
def test_what_is_decided_is_completed(left: Left, broker_on_a_copy: BrokerProcess, written: tuple[str, ...]) -> None:
    """Some of the markers are there, and Complete is not."""
    broker = broker_on_a_copy
    cut(broker, STATE)
    for log in MARKED:
        if log not in written:
            cut(broker, log)
    broker.start()
    with Wire(broker.address) as wire:
        until(lambda: state_of(wire, "p").startswith("Complete"), "the transaction is complete")
        assert state_of(wire, "p") == ("CompleteCommit" if left.is_commit else "CompleteAbort")
        check(left, wire, left.is_commit)
        goes_on(left, wire)
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        check(left, wire, left.is_commit, more=[b"more"], offset=3)


def test_what_is_not_decided_waits_for_its_producer(left: Left, broker_on_a_copy: BrokerProcess) -> None:
    """Everything was written but Prepare and what follows it."""
    broker = broker_on_a_copy
    cut(broker, STATE, 2)
    for log in MARKED:
        cut(broker, log)
    broker.start()
    with Wire(broker.address) as wire:
        assert state_of(wire, "p") == "Ongoing"
        for place in PLACES:
            read = read_committed(wire, place)
            assert (read.values, read.stable < read.end) == ([b"before"], True)
        assert committed_offset(wire, "g", PLACES[0]) == (NONE, 1)
        assert committed_offset(wire, "g", PLACES[0], require_stable=True) == (UNSTABLE_OFFSET_COMMIT, -1)
        successor = begun(wire, "p", left.producer.protocol)
        assert successor.id == left.producer.id
        check(left, wire, is_commit=False)


def check(left: Left, wire: Wire, is_commit: bool, more: list[bytes] | None = None, offset: int | None = None) -> None:
    """All of it counts or nothing, in every log, and nobody waits for anything."""
    for place in PLACES:
        read = read_committed(wire, place)
        assert read.values == [b"before", *([b"a", b"b"] if is_commit else []), *(more or [])]
        assert read.stable == read.end
    expected = offset or (2 if is_commit else 1)
    assert committed_offset(wire, "g", PLACES[0], require_stable=True) == (NONE, expected)


def goes_on(left: Left, wire: Wire) -> None:
    """The producer has not noticed anything."""
    producer = left.producer
    me = RawProducer(wire, producer.name, producer.protocol)
    me.id, me.epoch, me._next = producer.id, producer.epoch, dict(producer._next)
    for place in PLACES:
        me.write(place, b"more")
    me.take_along("g", {PLACES[0]: 3})
    assert me.commit() == NONE
