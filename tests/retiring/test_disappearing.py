"""A retired partition goes once every group has read it and its records' time is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from conftest import BrokerFactory
from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.retiring import put_setting, retire, values_of
from support.transactional import Protocol, RawProducer, committed_offset, last_offset
from support.waiting import PATIENCE_S, until
from support.wire import Wire, batch_of

NONE = 0
EARLIEST = -2


@pytest.fixture
def process(new_broker: BrokerFactory) -> BrokerProcess:
    return new_broker({"log.retention_check_ms": 50})


@pytest.fixture
def wire(process: BrokerProcess) -> Iterator[Wire]:
    with Wire(process.address) as connection:
        yield connection


def partitions(wire: Wire, topic: str) -> int:
    """What somebody sees who has not produced anything."""
    with Wire(wire.socket.getpeername()) as fresh:
        return len(fresh.metadata(topic)["partitions"])


def earliest(wire: Wire, topic: str, partition: int) -> int:
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=EARLIEST)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=topic, partitions=(wanted,)),), replica_id=-1)
    ((answer,),) = (each["partitions"] for each in wire.ask(apis.LIST_OFFSETS, 7, request)["topics"])
    assert answer["error_code"] == NONE, answer
    offset: int = answer["offset"]
    return offset


def commit(process: BrokerProcess, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = consumer_of(process, **{"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def test_it_is_kept_for_the_group_that_is_behind_and_then_goes(process: BrokerProcess, wire: Wire, topic: str) -> None:
    wire.create_topic(topic, partitions=3)
    for partition in 1, 2:
        for value in b"abcde":
            wire.produce(topic, batch_of(bytes([value])), partition=partition)
    commit(process, "quick", topic, 2, 5)
    commit(process, "slow", topic, 2, 3)
    assert retire(wire, topic, "2:0") == (NONE, None)
    assert put_setting(wire, topic, "retention.ms", "1") == (NONE, None)
    until(lambda: earliest(wire, topic, 1) == 5, "retention in a partition that is not retired")
    until(lambda: earliest(wire, topic, 2) == 3, "retention of what every group has read")
    assert values_of(wire, topic, 2, 3) == [b"d", b"e"]
    assert partitions(wire, topic) == 3
    commit(process, "slow", topic, 2, 5)
    until(lambda: partitions(wire, topic) == 2, "the partition going")
    until(lambda: committed_offset(wire, "slow", (topic, 2))[1] == -1, "its offsets being forgotten")


def test_it_stays_until_its_time_is_over_though_everybody_has_read_it(
    process: BrokerProcess, wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=2)
    wire.produce(topic, batch_of(b"a"), partition=1)
    commit(process, "quick", topic, 1, 1)
    retire(wire, topic, "1:0")
    other = f"{topic}-other"
    wire.create_topic(other, retention_ms=1)
    wire.produce(other, batch_of(b"x"))
    until(lambda: earliest(wire, other, 0) == 1, "a round of retention")
    assert (partitions(wire, topic), values_of(wire, topic, 1)) == (2, [b"a"])
    put_setting(wire, topic, "retention.ms", "1")
    until(lambda: partitions(wire, topic) == 1, "the partition going")


def test_several_go_the_last_first_and_what_is_still_sent_to_them_is_not_lost(
    process: BrokerProcess, wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=4)
    for partition in 2, 3:
        wire.produce(topic, batch_of(b"old"), partition=partition)
    commit(process, "slow", topic, 2, 0)
    retire(wire, topic, "2:0,3:1")
    put_setting(wire, topic, "retention.ms", "1")
    until(lambda: partitions(wire, topic) == 3, "the last one going")
    commit(process, "slow", topic, 2, 1)
    until(lambda: partitions(wire, topic) == 2, "the other one going")
    put_setting(wire, topic, "retention.ms", None)
    assert wire.produce(topic, batch_of(b"to 3"), partition=3)["error_code"] == NONE
    assert wire.produce(topic, batch_of(b"to 2"), partition=2)["error_code"] == NONE
    assert values_of(wire, topic, 1, last_offset(wire, (topic, 1), 0) - 1) == [b"to 3"]
    assert values_of(wire, topic, 0, last_offset(wire, (topic, 0), 0) - 1) == [b"to 2"]
    assert wire.produce(topic, batch_of(b"x"), partition=4)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_producer_at_work_still_sees_what_is_gone_and_nobody_else_does(
    process: BrokerProcess, wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=3)
    wire.produce(topic, batch_of(b"a"), partition=0)
    retire(wire, topic, "2:1")
    until(lambda: partitions(wire, topic) == 2, "an empty partition going")
    seen = wire.metadata(topic)["partitions"]
    assert [(each["partition_index"], each["leader_id"], each["leader_epoch"]) for each in seen] == [
        (0, 1, seen[0]["leader_epoch"]),
        (1, 1, seen[1]["leader_epoch"]),
        (2, 1, -1),
    ]
    assert wire.produce(topic, batch_of(b"b"), partition=2)["error_code"] == NONE
    assert values_of(wire, topic, 1) == [b"b"]


def test_a_partition_that_comes_again_is_new(process: BrokerProcess, wire: Wire, topic: str) -> None:
    wire.create_topic(topic, partitions=2)
    wire.produce(topic, batch_of(b"old"), partition=1)
    commit(process, "group", topic, 1, 1)
    retire(wire, topic, "1:0")
    admin = AdminClient({"bootstrap.servers": process.kafka})
    with pytest.raises(Exception, match="can grow when they are gone"):
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    put_setting(wire, topic, "retention.ms", "1")
    until(lambda: partitions(wire, topic) == 1, "the partition going")
    put_setting(wire, topic, "retention.ms", None)
    until(lambda: committed_offset(wire, "group", (topic, 1))[1] == -1, "its offsets being forgotten")
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
    assert wire.produce(topic, batch_of(b"new"), partition=1)["base_offset"] == 0
    assert values_of(wire, topic, 1) == [b"new"]


def test_a_group_that_stands_before_markers_and_aborted_records_has_read_everything(
    process: BrokerProcess, wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=2)
    producer = RawProducer(wire, topic, Protocol.OLD)
    assert producer.init() == NONE
    producer.write((topic, 1), b"a")
    assert producer.commit() == NONE
    producer.write((topic, 1), b"aborted")
    assert producer.abort() == NONE
    commit(process, "group", topic, 1, 1)
    retire(wire, topic, "1:0")
    put_setting(wire, topic, "retention.ms", "1")
    until(lambda: partitions(wire, topic) == 1, "the partition going")


def test_a_transaction_that_is_open_when_its_partition_goes_ends_in_the_successor(
    process: BrokerProcess, wire: Wire, topic: str
) -> None:
    wire.create_topic(topic, partitions=2)
    producer = RawProducer(wire, topic, Protocol.OLD)
    assert producer.init() == NONE
    assert producer.add((topic, 1)) == {(topic, 1): NONE}
    retire(wire, topic, "1:0")
    # In the moment in which it goes nobody leads it, and clients ask again.
    until(lambda: producer.produce((topic, 1), b"a")["error_code"] == NONE, "the record is taken")
    until(lambda: partitions(wire, topic) == 1, "an empty partition going")
    producer.write((topic, 1), b"b")
    assert last_offset(wire, (topic, 0), 1) == 0
    assert producer.commit() == NONE
    assert last_offset(wire, (topic, 0), 1) == last_offset(wire, (topic, 0), 0)
    assert values_of(wire, topic, 0) == [b"a", b"b"]
    producer.write((topic, 1), b"c")
    assert producer.commit() == NONE
    assert values_of(wire, topic, 0) == [b"a", b"b", b"c"]


def test_what_is_gone_stays_gone_after_a_restart(process: BrokerProcess, topic: str) -> None:
    with Wire(process.address) as wire:
        wire.create_topic(topic, partitions=2)
        retire(wire, topic, "1:0")
        until(lambda: partitions(wire, topic) == 1, "an empty partition going")
    process.kill()
    process.start()
    with Wire(process.address) as wire:
        assert partitions(wire, topic) == 1
        assert wire.produce(topic, batch_of(b"late"), partition=1)["error_code"] == NONE
        assert values_of(wire, topic, 0) == [b"late"]


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_a_running_group_reads_it_to_the_end_and_rebalances_when_it_is_gone(
    process: BrokerProcess, wire: Wire, topic: str, group_protocol: str
) -> None:
    wire.create_topic(topic, partitions=3)
    for partition in range(3):
        for number in range(10):
            wire.produce(topic, batch_of(b"%d.%d" % (partition, number)), partition=partition)
    settings: dict[str, Any] = {
        "group.id": topic,
        "group.protocol": group_protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "enable.auto.offset.store": True,
        "auto.commit.interval.ms": 100,
        "topic.metadata.refresh.interval.ms": 200,
    }
    consumer = consumer_of(process, **settings)
    consumer.subscribe([topic])
    got: list[bytes] = []
    errors: list[Any] = []

    def take() -> None:
        for message in consumer.consume(100, timeout=0.1):
            if message.error() is not None:
                errors.append(message.error())
            else:
                got.append(message.value() or b"")

    def assigned(consumer: Consumer) -> set[int]:
        take()
        return {each.partition for each in consumer.assignment()}

    until(lambda: assigned(consumer) == {0, 1, 2} and len(got) >= 1, "the group reading")
    retire(wire, topic, "2:0")
    for number in range(10):
        wire.produce(topic, batch_of(b"2.%d" % (10 + number)), partition=2)
    until(lambda: assigned(consumer) and len(got) >= 40, "everything being read")
    put_setting(wire, topic, "retention.ms", "1")
    until(lambda: assigned(consumer) == {0, 1}, "the group rebalancing")
    put_setting(wire, topic, "retention.ms", None)
    wire.produce(topic, batch_of(b"last"), partition=2)
    until(lambda: assigned(consumer) and b"last" in got, "what was sent to the partition that is gone")
    consumer.close()
    assert sorted(got) == sorted(
        [b"%d.%d" % (p, n) for p in range(3) for n in range(10)] + [b"2.%d" % (10 + n) for n in range(10)] + [b"last"]
    )
    assert errors == []
