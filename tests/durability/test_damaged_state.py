"""One flipped bit in an internal topic: what is sound is kept and served, and what is lost is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from penstock.errors import Code
from penstock.protocol import apis
from penstock.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.offset_fetch import OffsetFetchRequest
from penstock.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from support.broker_process import BrokerProcess
from support.damage import StoredBatch, flip, stored_batches
from support.ports import free_ports
from support.transactional import Protocol, RawProducer, begun, read_committed
from support.waiting import until
from support.wire import Wire, batch_of

SETTINGS = {"groups.offsets_partitions": 1, "transactions.state_partitions": 1}
GROUPS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
TOPIC = "orders"
LOST = "records of an internal topic are damaged"
VALUE = -3
"""Inside the last record's value, or close to it: counted from the end of a batch."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker", SETTINGS)
    process.inter_broker = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        with Wire(process.start().address) as wire:
            wire.create_topic(TOPIC, 3)
        yield process
    finally:
        process.kill()


def commit(broker: BrokerProcess, group: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = (OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),)
    with Wire(broker.address) as wire:

        def is_committed() -> bool:
            (answer,) = wire.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group_id=group, topics=topics))["topics"]
            return bool(answer["partitions"][0]["error_code"] == Code.NONE)

        until(is_committed, f"{group} commits")


def committed(broker: BrokerProcess, group: str) -> int:
    with Wire(broker.address) as wire:
        answer = until(
            lambda: next(
                (
                    found
                    for found in [wire.ask(apis.OFFSET_FETCH, 7, OffsetFetchRequest(group_id=group, topics=None))]
                    if found["error_code"] == Code.NONE
                ),
                None,
            ),
            f"the coordinator of {group} answers",
        )
    assert answer is not None
    found = [part["committed_offset"] for topic in answer["topics"] for part in topic["partitions"]]
    return found[0] if found else -1


def folder(broker: BrokerProcess, topic: str) -> Path:
    return broker.data / "logs" / f"{topic}-0"


def last_of(broker: BrokerProcess, topic: str, name: str) -> StoredBatch:
    return [batch for batch in stored_batches(folder(broker, topic)) if name.encode() in batch.content][-1]


def lost_lines(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log.splitlines() if LOST in line]


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("inside", [VALUE, 9, 17, 21, 66], ids=["value", "length", "crc", "attributes", "record"])
def test_a_flipped_bit_in_a_shard_of_groups_costs_one_commit_of_one_group(
    broker: BrokerProcess, end: str, inside: int
) -> None:
    for offset in (1, 2):
        for group in ("first", "second", "third"):
            commit(broker, group, offset)
    getattr(broker, end)()
    batch = last_of(broker, GROUPS, "second")
    flip(batch, inside if inside >= 0 else len(batch.content) + inside)
    for life in (1, 2):
        broker.start()
        assert [committed(broker, group) for group in ("first", "second", "third")] == [2, 1, 2]
        assert len(lost_lines(broker)) == life
        line = lost_lines(broker)[-1]
        assert f"from_offset={batch.header.base_offset} to_offset={batch.header.last_offset}" in line
        if inside in (VALUE, 17):
            assert "records_of=second" in line and "are_all_named=True" in line
        assert broker.metric("penstock_state_lost_ranges", topic=GROUPS) == 1
        assert broker.metric("penstock_damaged_ranges") == 1
        broker.stop()
    broker.start()
    commit(broker, "second", 7)
    broker.restart()
    assert [committed(broker, group) for group in ("first", "second", "third")] == [2, 7, 2]


def test_a_flipped_bit_in_a_key_is_named_after_whom_it_was_written_for(broker: BrokerProcess) -> None:
    for group in ("first", "second"):
        commit(broker, group, 1)
    broker.stop()
    batch = last_of(broker, GROUPS, "second")
    flip(batch, batch.content.index(b"second") + 2, bit=0)
    broker.start()
    assert committed(broker, "first") == 1
    (line,) = lost_lines(broker)
    assert "records_of=second" in line


def test_members_of_a_damaged_shard_join_and_work(broker: BrokerProcess) -> None:
    commit(broker, "workers", 1)
    commit(broker, "others", 1)
    broker.kill()
    batch = last_of(broker, GROUPS, "others")
    flip(batch, len(batch.content) + VALUE)
    broker.start()
    with Wire(broker.address) as wire:
        for _ in range(3):
            wire.produce(TOPIC, batch_of(b"x"))
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "workers", "enable.auto.commit": False})
    try:
        consumer.subscribe([TOPIC])
        message = until(lambda: consumer.poll(0.1), "a member of the group gets a message")
        assert message is not None and message.error() is None and message.offset() == 1
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    assert committed(broker, "workers") == 2


def state_of(broker: BrokerProcess, name: str) -> list[StoredBatch]:
    return [batch for batch in stored_batches(folder(broker, TRANSACTIONS)) if name.encode() in batch.content]


@pytest.mark.parametrize("protocol", [Protocol.OLD, Protocol.NEW])
def test_an_id_whose_last_state_is_lost_begins_anew_and_the_others_go_on(
    broker: BrokerProcess, protocol: Protocol
) -> None:
    place = (TOPIC, 0)
    with Wire(broker.address) as wire:
        kept, hurt = begun(wire, "kept", protocol), begun(wire, "hurt", protocol)
        for producer in (kept, hurt):
            producer.write(place, producer.name.encode())
            assert producer.commit() == 0
        former = hurt.id, hurt.epoch
    broker.stop()
    batch = state_of(broker, "hurt")[-1]
    flip(batch, len(batch.content) + VALUE)
    broker.start()
    with Wire(broker.address) as wire:
        kept.wire = hurt.wire = wire
        kept.write(place, b"kept again")
        assert kept.commit() == 0
        if protocol is Protocol.OLD:
            assert hurt.add(place)[place] in (Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_PRODUCER_EPOCH)
        else:
            assert hurt.produce(place, b"never")["error_code"] != Code.NONE
        until(lambda: hurt.init() == 0, "the id gets a producer id")
        assert hurt.id != former[0], "no epoch of the former producer id is given twice"
        hurt.write(place, b"hurt again")
        assert hurt.commit() == 0
        read = read_committed(wire, place)
        assert (read.values, read.stable) == ([b"kept", b"hurt", b"kept again", b"hurt again"], read.end)
    assert "records_of=hurt" in lost_lines(broker)[0]
    assert "transactional_id=hurt" in broker.log
    assert broker.metric("penstock_state_lost_ranges", topic=TRANSACTIONS) == 1
    broker.restart()
    with Wire(broker.address) as wire:
        hurt.wire = wire
        hurt.write(place, b"and again")
        assert hurt.commit() == 0


@pytest.mark.parametrize("protocol", [Protocol.OLD, Protocol.NEW])
def test_a_transaction_of_which_a_later_state_is_lost_is_aborted_and_holds_nobody_up(
    broker: BrokerProcess, protocol: Protocol
) -> None:
    with Wire(broker.address) as wire:
        producer = begun(wire, "hurt", protocol)
        producer.write((TOPIC, 0), b"never seen")
        producer.write((TOPIC, 1), b"never seen")
    broker.stop()
    batch = state_of(broker, "hurt")[-1]
    flip(batch, len(batch.content) + VALUE)
    broker.start()
    with Wire(broker.address) as wire:
        producer.wire = wire

        def stable() -> bool:
            read = read_committed(wire, (TOPIC, 0))
            return read.stable == read.end and read.values == []

        until(stable, "the transaction that is known of is aborted")
        assert producer.commit() != 0
        assert "decision=" in broker.log and "aborted" in broker.log
    # What it had written to the other partition is known to nobody: the operator aborts it, as docs/operations.md says.
    with Wire(broker.inter_broker_address) as wire:
        read = read_committed(wire, (TOPIC, 1))
        assert read.values == [] and read.stable < read.end
        topics = (WritableTxnMarkerTopic(name=TOPIC, partition_indexes=(1,)),)
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=0,
        )
        (answer,) = wire.ask(apis.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=(marker,)))["markers"]
        assert answer["topics"][0]["partitions"][0]["error_code"] == Code.NONE
        read = read_committed(wire, (TOPIC, 1))
        assert read.values == [] and read.stable == read.end


def test_a_commit_that_was_decided_is_not_carried_out_twice(broker: BrokerProcess) -> None:
    """The record that says that it is complete is lost, and another transaction, in the same epoch, has begun since."""
    place = (TOPIC, 0)
    with Wire(broker.address) as wire:
        producer = begun(wire, "hurt", Protocol.OLD)
        producer.write(place, b"first")
        assert producer.commit() == 0
        producer.write(place, b"second, never committed")
    broker.stop()
    states = state_of(broker, "hurt")
    for batch in states[-2:]:  # complete, and ongoing again
        flip(batch, len(batch.content) + VALUE)
    broker.start()
    with Wire(broker.address) as wire:
        until(lambda: RawProducer(wire, "hurt", Protocol.OLD).init() == 0, "the id begins anew")
        assert b"second, never committed" not in read_committed(wire, place).values
    assert "forgotten" in broker.log
