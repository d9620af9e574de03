"""A partition is retired: what becomes of batches, repeats and transactions before, at and after the switch."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import BrokerFactory
from penstock.errors import Code
from support.retiring import put_setting, retire, values_of
from support.transactional import READ_COMMITTED, Protocol, RawProducer, last_offset, read_committed
from support.wire import Wire, batch_of

NONE = 0


class Idempotent:
    """A producer with an id, that numbers its batches for each partition as a client does."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.id = wire.producer_id()

    def send(self, partition: int, sequence: int, *values: bytes, epoch: int = 0) -> dict[str, Any]:
        batch = batch_of(*values, producer_id=self.id, producer_epoch=epoch, base_sequence=sequence)
        return self.wire.produce(self.topic, batch, partition=partition)


def ok(result: dict[str, Any]) -> int:
    assert result["error_code"] == NONE, result
    offset: int = result["base_offset"]
    return offset


@pytest.fixture
def retired_topic(wire: Wire, topic: str) -> str:
    """Three partitions; the last is retired in favour of the first, with one record in each of the two."""
    wire.create_topic(topic, partitions=3)
    ok(wire.produce(topic, batch_of(b"own"), partition=0))
    ok(wire.produce(topic, batch_of(b"before"), partition=2))
    assert retire(wire, topic, "2:0") == (NONE, None)
    return topic


@pytest.mark.parametrize("acks", [-1, 1])
def test_what_is_sent_to_a_retired_partition_is_appended_to_its_successor(
    wire: Wire, retired_topic: str, acks: int
) -> None:
    result = wire.produce(retired_topic, batch_of(b"after"), partition=2, acks=acks)
    assert (result["index"], ok(result)) == (2, 1)
    assert values_of(wire, retired_topic, 2) == [b"before"]
    assert values_of(wire, retired_topic, 0) == [b"own", b"after"]


def test_the_metadata_stays_as_it_was(wire: Wire, retired_topic: str) -> None:
    partitions = wire.metadata(retired_topic)["partitions"]
    assert [(each["partition_index"], each["leader_id"], each["error_code"]) for each in partitions] == [
        (0, 1, NONE),
        (1, 1, NONE),
        (2, 1, NONE),
    ]


def test_a_producer_numbers_what_it_sends_to_each_partition_as_before(wire: Wire, topic: str) -> None:
    wire.create_topic(topic, partitions=3)
    producer = Idempotent(wire, topic)
    ok(producer.send(2, 0, b"r0", b"r1"))
    ok(producer.send(0, 0, b"s0"))
    retire(wire, topic, "2:0")
    ok(producer.send(0, 1, b"s1"))
    ok(producer.send(2, 2, b"r2"))
    ok(producer.send(2, 3, b"r3"))
    ok(producer.send(0, 2, b"s2"))
    assert values_of(wire, topic, 2) == [b"r0", b"r1"]
    assert values_of(wire, topic, 0) == [b"s0", b"s1", b"r2", b"r3", b"s2"]


def test_a_repeat_of_what_came_before_the_switch_is_answered_with_where_it_is(wire: Wire, topic: str) -> None:
    wire.create_topic(topic, partitions=2)
    producer = Idempotent(wire, topic)
    ok(wire.produce(topic, batch_of(b"x"), partition=1))
    first = ok(producer.send(1, 0, b"a"))
    second = ok(producer.send(1, 1, b"b"))
    retire(wire, topic, "1:0")
    assert ok(producer.send(1, 1, b"b")) == second
    third = ok(producer.send(1, 2, b"c"))
    # Everything that was under way when the connection broke is sent again, in order.
    assert [ok(producer.send(1, n, value)) for n, value in enumerate((b"a", b"b", b"c"))] == [first, second, third]
    ok(producer.send(1, 3, b"d"))
    assert values_of(wire, topic, 1) == [b"x", b"a", b"b"]
    assert values_of(wire, topic, 0) == [b"c", b"d"]


def test_a_batch_that_comes_before_the_one_it_follows_is_refused_on_both_sides_of_the_switch(
    wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=2)
    producer = Idempotent(wire, topic)
    ok(producer.send(1, 0, b"a"))
    retire(wire, topic, "1:0")
    assert producer.send(1, 2, b"c")["error_code"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    ok(producer.send(1, 1, b"b"))
    assert producer.send(1, 3, b"d")["error_code"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    ok(producer.send(1, 2, b"c"))
    assert values_of(wire, topic, 0) == [b"b", b"c"]


def test_a_producer_that_begins_its_next_epoch_is_taken_and_its_former_one_refused(wire: Wire, topic: str) -> None:
    wire.create_topic(topic, partitions=2)
    producer = Idempotent(wire, topic)
    ok(producer.send(1, 0, b"a"))
    retire(wire, topic, "1:0")
    ok(producer.send(1, 0, b"b", epoch=1))
    assert producer.send(1, 1, b"c")["error_code"] == Code.INVALID_PRODUCER_EPOCH
    assert values_of(wire, topic, 0) == [b"b"]


def test_a_batch_that_is_damaged_is_refused_and_not_made_good(wire: Wire, retired_topic: str) -> None:
    damaged = bytearray(batch_of(b"after", producer_id=wire.producer_id(), producer_epoch=0, base_sequence=0))
    damaged[-2] ^= 1
    assert wire.produce(retired_topic, bytes(damaged), partition=2)["error_code"] == Code.CORRUPT_MESSAGE
    assert values_of(wire, retired_topic, 0) == [b"own"]


def test_what_a_producer_sent_is_known_after_a_crash(new_broker: BrokerFactory, topic: str) -> None:
    process = new_broker({"log.retention_check_ms": 60_000})
    with Wire(process.address) as wire:
        wire.create_topic(topic, partitions=2)
        producer = Idempotent(wire, topic)
        first = ok(producer.send(1, 0, b"a"))
        retire(wire, topic, "1:0")
        second = ok(producer.send(1, 1, b"b"))
    process.kill()
    process.start()
    with Wire(process.address) as wire:
        producer.wire = wire
        assert ok(producer.send(1, 0, b"a")) == first
        assert ok(producer.send(1, 1, b"b")) == second
        ok(producer.send(1, 2, b"c"))
        assert (values_of(wire, topic, 1), values_of(wire, topic, 0)) == ([b"a"], [b"b", b"c"])


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_across_the_switch_ends_in_both_logs(
    wire: Wire, topic: str, protocol: Protocol, commits: bool
) -> None:
    wire.create_topic(topic, partitions=3)
    retired, successor = (topic, 2), (topic, 0)
    producer = RawProducer(wire, topic, protocol)
    assert producer.init() == NONE
    producer.write(retired, b"a")
    producer.write(successor, b"own")
    retire(wire, topic, "2:0")
    producer.write(retired, b"b")
    producer.write(retired, b"c")
    assert read_committed(wire, retired).values == read_committed(wire, successor).values == []
    assert producer.end(committed=commits) == NONE
    assert read_committed(wire, retired).values == ([b"a"] if commits else [])
    assert read_committed(wire, successor).values == ([b"own", b"b", b"c"] if commits else [])
    for place in retired, successor:
        assert last_offset(wire, place, READ_COMMITTED) == last_offset(wire, place, 0)


def test_the_next_transactions_leave_the_retired_log_alone(wire: Wire, topic: str, protocol: Protocol) -> None:
    wire.create_topic(topic, partitions=2)
    retired, successor = (topic, 1), (topic, 0)
    producer = RawProducer(wire, topic, protocol)
    assert producer.init() == NONE
    producer.write(retired, b"a")
    assert producer.commit() == NONE
    end = last_offset(wire, retired, 0)
    retire(wire, topic, "1:0")
    expected = []
    for number in range(6):
        value = b"%d" % number
        producer.write(retired, value)
        commits = number % 3 != 1
        assert producer.end(committed=commits) == NONE
        expected += [value] if commits else []
    assert last_offset(wire, retired, 0) == end
    assert read_committed(wire, successor).values == expected


def test_a_batch_of_a_transaction_that_is_over_is_refused(wire: Wire, topic: str, protocol: Protocol) -> None:
    wire.create_topic(topic, partitions=2)
    retired, successor = (topic, 1), (topic, 0)
    producer = RawProducer(wire, topic, protocol)
    assert producer.init() == NONE
    retire(wire, topic, "1:0")
    producer.write(retired, b"a")
    late = producer.held(retired, b"late")
    assert producer.abort() == NONE
    assert producer.send(late)["error_code"] != NONE
    assert read_committed(wire, successor).values == []
    assert last_offset(wire, successor, READ_COMMITTED) == last_offset(wire, successor, 0)


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ("1:0", "only the last partitions"),
        ("0:1,1:2", "a successor that is not retired itself"),
        ("2:2", "a successor that is not retired itself"),
        ("3:0", "there is no partition 3"),
        ("2:5", "there is no partition 5"),
        ("2", "RETIRED:SUCCESSOR"),
        ("2:0,2:1", "one successor a partition"),
        ("x:0", "RETIRED:SUCCESSOR"),
    ],
)
def test_what_cannot_be_retired_is_refused(wire: Wire, topic: str, pairs: str, reason: str) -> None:
    wire.create_topic(topic, partitions=3)
    code, message = retire(wire, topic, pairs)
    assert code == Code.INVALID_CONFIG
    assert message is not None and reason in message


@pytest.mark.parametrize("pairs", [None, "2:1", ""])
def test_a_retirement_cannot_be_taken_back(wire: Wire, retired_topic: str, pairs: str | None) -> None:
    code, message = retire(wire, retired_topic, pairs)
    assert code == Code.INVALID_CONFIG
    assert message is not None and "cannot be changed any more" in message


def test_other_settings_of_a_topic_with_retired_partitions_can_be_changed(wire: Wire, retired_topic: str) -> None:
    assert put_setting(wire, retired_topic, "retention.ms", "1000") == (NONE, None)
    code, message = put_setting(wire, retired_topic, "cleanup.policy", "compact")
    assert code == Code.INVALID_CONFIG
    assert message is not None and "cleanup.policy=compact" in message
