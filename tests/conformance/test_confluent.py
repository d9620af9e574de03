"""confluent-kafka, that is librdkafka: the client most languages stand on."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from support.broker_process import BrokerProcess
from support.confluent import consumer_of, error_of, read, send
from support.waiting import PATIENCE_S

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_what_is_produced_is_consumed_in_order(
    broker: BrokerProcess, created: str, consumer: Consumer, acks: str
) -> None:
    values: list[bytes | None] = [b"value %d" % number for number in range(100)]
    reports = send(broker, created, values, acks=acks)
    if acks != "0":
        assert [message.offset() for message in reports] == list(range(100))
    consumer.assign([TopicPartition(created, 0, OFFSET_BEGINNING)])
    found = read(consumer, 100)
    assert [message.value() for message in found] == values
    assert [message.offset() for message in found] == list(range(100))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_survives_the_way(broker: BrokerProcess, created: str, consumer: Consumer, codec: str) -> None:
    values: list[bytes | None] = [b"value %d " % number * 50 for number in range(500)]
    send(broker, created, values, **{"compression.type": codec})
    consumer.assign([TopicPartition(created, 0, 0)])
    assert [message.value() for message in read(consumer, 500)] == values


def test_keys_headers_nulls_and_timestamps_are_kept(broker: BrokerProcess, created: str, consumer: Consumer) -> None:
    when = int(time.time() * 1000) - 5000
    headers: Any = [("first", b"1"), ("empty", b""), ("null", None), ("first", b"again"), ("all", bytes(range(256)))]
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(created, b"value", b"key", partition=1, timestamp=when, headers=headers)
    producer.produce(created, None, b"tombstone", partition=1, timestamp=when)
    producer.produce(created, b"", b"", partition=1, timestamp=when)
    producer.produce(created, partition=1, timestamp=when)
    assert producer.flush(PATIENCE_S) == 0
    consumer.assign([TopicPartition(created, 1, 0)])
    found = read(consumer, 4)
    assert [(message.key(), message.value()) for message in found] == [
        (b"key", b"value"),
        (b"tombstone", None),
        (b"", b""),
        (None, None),
    ]
    assert found[0].headers() == headers
    assert {message.timestamp()[1] for message in found} == {when}


def test_an_idempotent_producer_delivers_each_message_once(
    broker: BrokerProcess, created: str, consumer: Consumer
) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(2000)]
    more = {"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 0}
    send(broker, created, values, **more)
    consumer.assign([TopicPartition(created, 0, 0)])
    assert [message.value() for message in read(consumer, 2000)] == values


def test_many_small_messages_arrive_on_all_partitions(broker: BrokerProcess, created: str, consumer: Consumer) -> None:
    count = 20_000
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5})
    for number in range(count):
        while True:
            try:
                producer.produce(created, b"%d" % number, b"key %d" % (number % 100))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    consumer.assign([TopicPartition(created, partition, 0) for partition in range(3)])
    found = read(consumer, count)
    assert {message.value() for message in found} == {b"%d" % number for number in range(count)}
    assert {message.partition() for message in found} == {0, 1, 2}
    # Messages of one key stay in order.
    last: dict[bytes, int] = {}
    for message in found:
        key, number = message.key() or b"", int(message.value() or b"-1")
        assert last.get(key, -1) < number
        last[key] = number


def test_large_messages_arrive_whole(admin: AdminClient, broker: BrokerProcess, topic: str, consumer: Consumer) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "20000000"})])[topic].result()
    values: list[bytes | None] = [os.urandom(size) for size in (900_000, 5_000_000, 15_000_000)]
    send(broker, topic, values, **{"message.max.bytes": 20_000_000})
    # The client's own limit for one partition is 1 MB: a batch that is larger must come all the same.
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in read(consumer, 3)] == values


def test_a_reader_begins_where_it_is_told(broker: BrokerProcess, created: str, consumer: Consumer) -> None:
    send(broker, created, [b"%d" % number for number in range(10)])
    consumer.assign([TopicPartition(created, 0, 7)])
    assert [message.value() for message in read(consumer, 3)] == [b"7", b"8", b"9"]
    consumer.seek(TopicPartition(created, 0, 2))
    assert read(consumer, 1)[0].value() == b"2"
    consumer.seek(TopicPartition(created, 0, OFFSET_BEGINNING))
    assert read(consumer, 1)[0].value() == b"0"


def test_a_reader_at_the_end_gets_what_comes_next(broker: BrokerProcess, created: str) -> None:
    send(broker, created, [b"before"])
    consumer = consumer_of(broker, **{"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(created, 0, OFFSET_END)])
        reached = consumer.poll(PATIENCE_S)
        assert reached is not None
        assert error_of(reached) == KafkaError._PARTITION_EOF
        send(broker, created, [b"after"])
        found = consumer.poll(PATIENCE_S)
        assert found is not None
        assert (found.value(), found.offset()) == (b"after", 1)
    finally:
        consumer.close()


def test_offsets_are_found_by_time_and_at_the_ends(
    admin: AdminClient, broker: BrokerProcess, created: str, consumer: Consumer
) -> None:
    base = int(time.time() * 1000) - 60_000
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in (0, 1, 2, 5, 3):
        producer.produce(created, b"x", partition=0, timestamp=base + number * 1000)
        producer.flush(PATIENCE_S)
    asked = {delta: TopicPartition(created, 0, base + delta) for delta in (-5, 0, 1, 2000, 2500, 5000, 5001)}
    found = {delta: consumer.offsets_for_times([each], PATIENCE_S)[0].offset for delta, each in asked.items()}
    assert found == {-5: 0, 0: 0, 1: 1, 2000: 2, 2500: 3, 5000: 3, 5001: OFFSET_END}
    assert consumer.get_watermark_offsets(TopicPartition(created, 0), PATIENCE_S) == (0, 5)
    special: Any = OffsetSpec
    specs = [special.earliest(), special.latest(), special.max_timestamp(), special.for_timestamp(base + 1)]
    partition = TopicPartition(created, 0)
    results = [admin.list_offsets({partition: spec})[partition].result(PATIENCE_S) for spec in specs]
    assert [result.offset for result in results] == [0, 5, 3, 1]
    assert results[2].timestamp == base + 5000


def test_a_message_larger_than_the_topic_allows_is_refused(
    admin: AdminClient, broker: BrokerProcess, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result(PATIENCE_S)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"x" * 2000, on_delivery=lambda error, message: errors.append(error))
    # A batch is refused as a whole, so the small one must not be in it.
    assert producer.flush(PATIENCE_S) == 0
    producer.produce(topic, b"small", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert [None if error is None else error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE, None]


def test_a_topic_is_created_by_the_first_message_to_it(broker: BrokerProcess, topic: str, consumer: Consumer) -> None:
    send(broker, topic, [b"first"])
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert read(consumer, 1)[0].value() == b"first"


@pytest.mark.parametrize(("reset", "value"), [("earliest", b"0"), ("error", None)])
def test_an_offset_out_of_range_is_reset_or_reported(
    broker: BrokerProcess, created: str, reset: str, value: bytes | None
) -> None:
    send(broker, created, [b"%d" % number for number in range(5)])
    consumer = consumer_of(broker, **{"auto.offset.reset": reset})
    try:
        consumer.assign([TopicPartition(created, 0, 1000)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if value is None:
            assert error_of(message) == KafkaError._AUTO_OFFSET_RESET
        else:
            assert message.value() == value
    finally:
        consumer.close()
