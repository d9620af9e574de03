"""Delayed messages of every client, in every shape of batch."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from support.broker_process import BrokerProcess
from support.delayed import Arrivals, Sending, assert_not_early, delayed, refusal, send, send_with
from support.waiting import PATIENCE_S


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_mixed_batch_gives_now_what_is_for_now_and_the_rest_when_due(
    broker: BrokerProcess, topic: str, codec: str
) -> None:
    messages = [
        Sending(b"now 0"),
        delayed(b"late", "900"),
        Sending(b"now 1"),
        delayed(b"soon", "300"),
        Sending(b"now 2"),
    ]
    sent_ms = time.time() * 1000
    settings: dict[str, Any] = {"compression.type": codec, "linger.ms": 200}
    told = send(broker.kafka, topic, messages, **settings)
    assert told == [0, 1, 2, 3, 4]
    with Arrivals(broker.kafka, topic) as arrivals:
        found = arrivals.until(5)
    assert arrivals.values == [b"now 0", b"now 1", b"now 2", b"soon", b"late"]
    assert [arrival.offset for arrival in found] == [0, 2, 4, 5, 6]
    assert_not_early(found)
    due = int(found[3].headers["penstock-deliver-at"])
    assert sent_ms + 300 <= due + 1
    assert "penstock-delay" not in found[3].headers


@pytest.mark.parametrize("settings", [{"enable.idempotence": True}, {"acks": 1}, {"acks": 0}])
def test_every_kind_of_acknowledgement(broker: BrokerProcess, topic: str, settings: dict[str, object]) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, **settings})
    send_with(producer, topic, [delayed(b"%d" % number, "200") for number in range(50)])
    with Arrivals(broker.kafka, topic) as arrivals:
        arrivals.until(50)
        assert arrivals.values == [b"%d" % number for number in range(50)]
        assert_not_early(arrivals.all)


def test_keys_values_and_headers_arrive_as_they_were_sent(broker: BrokerProcess, topic: str) -> None:
    headers = [("a", b"\xff\x00"), ("penstock-delay", b"50ms"), ("a", b"again"), ("b", b"")]
    send(broker.kafka, topic, [Sending(b"x" * 5000, headers, b"key")])
    consumer = KafkaConsumer(bootstrap_servers=broker.kafka, consumer_timeout_ms=PATIENCE_S * 1000)
    at = PythonPartition(topic, 0)
    consumer.assign([at])
    consumer.seek_to_beginning(at)
    record = next(consumer)
    consumer.close()
    assert (record.key, record.value) == (b"key", b"x" * 5000)
    assert [(name, value) for name, value in record.headers if name != "penstock-deliver-at"] == [
        ("a", b"\xff\x00"),
        ("a", b"again"),
        ("b", b""),
    ]
    assert record.headers[1][0] == "penstock-deliver-at"


def test_kafka_python_sends_and_gets_a_delayed_message(broker: BrokerProcess, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    told = producer.send(topic, b"later", headers=[("penstock-delay", b"300")], partition=0).get(PATIENCE_S)
    producer.send(topic, b"now", partition=0).get(PATIENCE_S)
    producer.close()
    assert told.offset == 0
    consumer = KafkaConsumer(bootstrap_servers=broker.kafka, consumer_timeout_ms=PATIENCE_S * 1000)
    at = PythonPartition(topic, 0)
    consumer.assign([at])
    consumer.seek_to_beginning(at)
    found = [next(consumer), next(consumer)]
    consumer.close()
    assert [record.value for record in found] == [b"now", b"later"]
    assert found[1].timestamp >= int(dict(found[1].headers)["penstock-deliver-at"])


async def test_aiokafka_sends_and_gets_a_delayed_message(broker: BrokerProcess, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.kafka, enable_idempotence=True) as producer:
        batch = [
            await producer.send(topic, b"later", headers=[("penstock-delay", b"300")], partition=0),
            await producer.send(topic, b"now", partition=0),
        ]
        await asyncio.gather(*batch)
    async with AIOKafkaConsumer(bootstrap_servers=broker.kafka) as consumer:
        at = AioPartition(topic, 0)
        consumer.assign([at])
        await consumer.seek_to_beginning(at)
        found = [await asyncio.wait_for(consumer.getone(), PATIENCE_S) for _ in range(2)]
    assert [record.value for record in found] == [b"now", b"later"]


def test_kcat_sends_and_gets_a_delayed_message(broker: BrokerProcess, topic: str) -> None:
    kcat = ["kcat", "-q", "-b", broker.kafka, "-t", topic, "-p", "0"]
    subprocess.run([*kcat, "-P", "-H", "penstock-delay=300"], input=b"later\n", check=True, timeout=PATIENCE_S)
    subprocess.run([*kcat, "-P"], input=b"now\n", check=True, timeout=PATIENCE_S)
    found = subprocess.run(
        [*kcat, "-C", "-o", "beginning", "-c", "2", "-f", "%s %o\n"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert found.stdout == b"now 1\nlater 2\n"


def test_a_group_reads_past_the_gaps_and_has_no_lag_left(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [delayed(b"%d" % number, "100") for number in range(10)])
    consumer = KafkaConsumer(
        bootstrap_servers=broker.kafka, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    # kafka-python assigns nothing, for good, if it joins before it has heard of the topic.
    assert consumer.partitions_for_topic(topic)
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 10 and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found += [record.value for record in records]
    consumer.commit()
    at = PythonPartition(topic, 0)
    assert found == [b"%d" % number for number in range(10)]
    assert consumer.committed(at) == consumer.end_offsets([at])[at]
    consumer.close()


def test_what_cannot_be_understood_is_refused_with_its_name(broker: BrokerProcess, topic: str) -> None:
    send(broker.kafka, topic, [Sending(b"first")])
    error = refusal(broker.kafka, topic, Sending(b"x", [("penstock-delay", b"soon")]))
    assert error.name() == "INVALID_RECORD"
    with KafkaProducerOnce(broker.kafka) as producer, pytest.raises(Exception, match="penstock-delay"):
        producer.send(topic, b"x", headers=[("penstock-delay", b"soon")], partition=0).get(PATIENCE_S)
    with Arrivals(broker.kafka, topic) as arrivals:
        send(broker.kafka, topic, [Sending(b"last")])
        arrivals.until(2)
        assert arrivals.values == [b"first", b"last"]


class KafkaProducerOnce:
    """A producer of kafka-python that does not try again: it shows the broker's words."""

    def __init__(self, kafka: str) -> None:
        self._producer = KafkaProducer(bootstrap_servers=kafka, retries=0, enable_idempotence=False)

    def __enter__(self) -> KafkaProducer:
        return self._producer

    def __exit__(self, *_: object) -> None:
        self._producer.close()
