"""Produce, and what idempotent producers rely on, at the level of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from penstock.errors import Code
from penstock.protocol import apis
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from penstock.records.compression import Codec
from penstock.records.records import Record, build_batch
from support.broker_process import BrokerProcess
from support.waiting import until
from support.wire import Wire, batch_of, produce_request

BrokerFactory = Callable[..., BrokerProcess]

# Versions below are advertised because some clients look for them, but take a message format that is no more.
FIRST_VERSION = 3


def numbered(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize("version", range(FIRST_VERSION, apis.PRODUCE.max_version + 1))
def test_every_version_of_produce_is_answered(broker: BrokerProcess, topic: str, version: int) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        for offset in range(3):
            result = wire.produce(topic, batch_of(b"value"), version=version)
            assert (result["error_code"], result["base_offset"]) == (0, offset)
        assert wire.produce("no-such-topic", batch_of(b"x"), version=version)["error_code"] == 3


def test_a_produce_that_wants_no_answer_gets_none(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        wire.send(apis.PRODUCE, 11, produce_request(topic, batch_of(b"silent"), acks=0))
        # The next answer on the connection is the one to the next request.
        assert wire.produce(topic, batch_of(b"loud"))["base_offset"] == 1
        assert b"silent" in wire.fetch(topic, 0)["records"]


def test_a_failed_produce_that_wants_no_answer_closes_the_connection(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.send(apis.PRODUCE, 11, produce_request("no-such-topic", batch_of(b"x"), acks=0))
        assert wire.is_closed_by_broker()


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_mean_nothing_are_refused(broker: BrokerProcess, topic: str, acks: int) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        assert wire.produce(topic, batch_of(b"x"), acks=acks)["error_code"] == Code.INVALID_REQUIRED_ACKS
        assert wire.fetch(topic, 0)["high_watermark"] == 0


@pytest.mark.log_files("the commit satisfies min.insync.replicas: copies are the database's matter")
def test_acks_all_is_refused_where_more_replicas_are_wanted_than_there_are(
    new_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    broker = new_broker({"topic.min.insync.replicas": 2})
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        assert wire.produce(topic, batch_of(b"x"), acks=-1)["error_code"] == Code.NOT_ENOUGH_REPLICAS
        assert wire.produce(topic, batch_of(b"x"), acks=1)["error_code"] == 0


def test_a_batch_with_a_flipped_bit_is_refused_wherever_it_is(broker: BrokerProcess, topic: str) -> None:
    whole = batch_of(b"precious")
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        # The CRC covers everything from the attributes on.
        for position in range(21, len(whole)):
            broken = bytearray(whole)
            broken[position] ^= 0x10
            assert wire.produce(topic, bytes(broken))["error_code"] == Code.CORRUPT_MESSAGE
        assert wire.fetch(topic, 0)["high_watermark"] == 0
        assert wire.produce(topic, whole)["base_offset"] == 0


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(batch_of(b"a") + batch_of(b"b"), Code.INVALID_RECORD, id="two batches"),
        pytest.param(batch_of(b"a")[:-1], Code.INVALID_RECORD, id="cut"),
        pytest.param(batch_of(b"a") + b"\0", Code.INVALID_RECORD, id="trailing byte"),
        pytest.param(b"", Code.INVALID_RECORD, id="empty"),
        pytest.param(None, Code.INVALID_RECORD, id="null"),
        pytest.param(b"\0" * 61, Code.INVALID_RECORD, id="zeros"),
        pytest.param(batch_of(b"a", attributes=CONTROL_BIT), Code.INVALID_RECORD, id="control batch"),
        pytest.param(batch_of(b"a", attributes=TRANSACTIONAL_BIT), Code.INVALID_RECORD, id="transaction of nobody"),
        pytest.param(
            batch_of(b"a", attributes=TRANSACTIONAL_BIT, producer_id=1 << 40, producer_epoch=0, base_sequence=0),
            Code.INVALID_TXN_STATE,
            id="no transaction",
        ),
        pytest.param(batch_of(b"a", attributes=7), Code.UNSUPPORTED_COMPRESSION_TYPE, id="unknown codec"),
        pytest.param(
            bytes(build_batch([Record(None, b"a", timestamp_ms=int(time.time() * 1000) + 10**9)])),
            Code.INVALID_TIMESTAMP,
            id="far in the future",
        ),
    ],
)
def test_what_is_not_one_proper_batch_is_refused(
    broker: BrokerProcess, topic: str, records: bytes | None, code: Code
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        result = wire.produce(topic, records)
        assert result["error_code"] == code
        assert result["error_message"]
        assert wire.fetch(topic, 0)["high_watermark"] == 0


def test_zstd_is_refused_in_versions_that_did_not_know_it(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        squeezed = batch_of(b"x", codec=Codec.ZSTD)
        assert wire.produce(topic, squeezed, version=6)["error_code"] == Code.UNSUPPORTED_COMPRESSION_TYPE
        assert wire.produce(topic, squeezed, version=7)["error_code"] == 0


def test_each_partition_of_a_produce_has_its_own_outcome(broker: BrokerProcess, topic: str) -> None:
    broken = bytearray(batch_of(b"x"))
    broken[-1] ^= 1
    with Wire(broker.address) as wire:
        wire.create_topic(topic, partitions=3)
        request = produce_request(topic, None)
        request["topic_data"][0]["partition_data"] = [
            {"index": 0, "records": batch_of(b"fine")},
            {"index": 1, "records": bytes(broken)},
            {"index": 2, "records": batch_of(b"fine", b"too")},
            {"index": 3, "records": batch_of(b"nowhere")},
        ]
        answer = wire.ask(apis.PRODUCE, 11, request)
    codes = {result["index"]: result["error_code"] for result in answer["responses"][0]["partition_responses"]}
    assert codes == {0: 0, 1: Code.CORRUPT_MESSAGE, 2: 0, 3: Code.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_compacted_topic_names_the_records_without_a_key(broker: BrokerProcess, topic: str) -> None:
    now_ms = int(time.time() * 1000)
    records = [Record(b"k", b"v", timestamp_ms=now_ms), Record(None, b"v", timestamp_ms=now_ms)]
    with Wire(broker.address) as wire:
        wire.create_topic(topic, cleanup_policy="compact")
        result = wire.produce(topic, bytes(build_batch(records)))
    assert result["error_code"] == Code.INVALID_RECORD
    assert [error["batch_index"] for error in result["record_errors"]] == [1]


def test_a_batch_sent_again_is_answered_with_its_first_offset_and_stored_once(
    broker: BrokerProcess, topic: str
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        me = wire.producer_id()
        first, second = numbered(me, 0, b"a", b"b"), numbered(me, 2, b"c")
        assert wire.produce(topic, first)["base_offset"] == 0
        assert wire.produce(topic, second)["base_offset"] == 2
        for _ in range(2):
            again = wire.produce(topic, first)
            assert (again["error_code"], again["base_offset"]) == (0, 0)
        assert wire.fetch(topic, 0)["high_watermark"] == 3


def test_a_gap_in_the_sequence_is_refused(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        me = wire.producer_id()
        assert wire.produce(topic, numbered(me, 0, b"a"))["error_code"] == 0
        assert wire.produce(topic, numbered(me, 2, b"c"))["error_code"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert wire.produce(topic, numbered(me, 1, b"b"))["base_offset"] == 1


def test_an_older_epoch_of_a_producer_is_refused(broker: BrokerProcess, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        me = wire.producer_id()
        assert wire.produce(topic, numbered(me, 0, b"a"))["error_code"] == 0
        assert wire.produce(topic, numbered(me, 5, b"b", epoch=1))["error_code"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert wire.produce(topic, numbered(me, 0, b"b", epoch=1))["error_code"] == 0
        assert wire.produce(topic, numbered(me, 1, b"c", epoch=0))["error_code"] == Code.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("crash", [True, False], ids=["kill -9", "stop"])
def test_duplicates_and_gaps_are_known_after_a_restart(new_broker: BrokerFactory, topic: str, crash: bool) -> None:
    broker = new_broker()
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        me = wire.producer_id()
        batches = [numbered(me, sequence, b"value %d" % sequence) for sequence in range(7)]
        for offset, batch in enumerate(batches):
            assert wire.produce(topic, batch)["base_offset"] == offset
    if crash:
        broker.kill()
    broker.restart()
    with Wire(broker.address) as wire:
        assert wire.fetch(topic, 0)["high_watermark"] == 7
        # What clients can have in flight, five batches, is remembered.
        for offset in range(2, 7):
            again = wire.produce(topic, batches[offset])
            assert (again["error_code"], again["base_offset"]) == (0, offset)
        assert wire.produce(topic, numbered(me, 8, b"gap"))["error_code"] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert wire.produce(topic, numbered(me, 7, b"next"))["base_offset"] == 7


def test_what_was_acknowledged_is_there_after_a_crash(new_broker: BrokerFactory, topic: str) -> None:
    broker = new_broker()
    acknowledged: list[bytes] = []
    for round_ in range(3):
        with Wire(broker.address) as wire:
            if not round_:
                wire.create_topic(topic, segment_bytes=2048)
            for number in range(50):
                value = b"round %d value %d" % (round_, number)
                assert wire.produce(topic, batch_of(value))["base_offset"] == len(acknowledged)
                acknowledged.append(value)
        broker.kill()
        broker.restart()
    with Wire(broker.address) as wire:
        found = b""
        offset = 0
        while offset < len(acknowledged):
            result = wire.fetch(topic, offset)
            assert result["high_watermark"] == len(acknowledged)
            found += result["records"]
            offset = found_end(result["records"])
    assert [value for value in acknowledged if value not in found] == []


def found_end(records: bytes) -> int:
    """The offset after the last batch of a fetch."""
    position, end = 0, 0
    while position < len(records):
        base = int.from_bytes(records[position : position + 8], "big")
        length = int.from_bytes(records[position + 8 : position + 12], "big")
        end = base + int.from_bytes(records[position + 23 : position + 27], "big") + 1
        position += 12 + length
    return end


def test_no_producer_id_is_given_out_twice(new_broker: BrokerFactory) -> None:
    broker = new_broker()
    seen: list[int] = []
    for crash in (True, False, True):
        with Wire(broker.address) as wire:
            seen += [wire.producer_id() for _ in range(20)]
        if crash:
            broker.kill()
        broker.restart()
    with Wire(broker.address) as wire:
        seen += [wire.producer_id() for _ in range(20)]
    assert len(set(seen)) == len(seen) == 80


def test_append_time_is_stamped_and_answered_where_the_topic_asks_for_it(broker: BrokerProcess, topic: str) -> None:
    before = int(time.time() * 1000)
    with Wire(broker.address) as wire:
        wire.create_topic(topic, message_timestamp_type="LogAppendTime")
        result = wire.produce(topic, bytes(build_batch([Record(None, b"old", timestamp_ms=5)])))
        # kio has whole seconds for this field.
        assert result["log_append_time_ms"] // 1000 >= before // 1000
        records = until(lambda: wire.fetch(topic, 0)["records"], "the record is there")
    assert int.from_bytes(records[35:43], "big") >= before
    assert records[22] & 0x08
