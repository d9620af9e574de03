"""What one client wrote, every other reads: each client with each codec it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import codec as kafka_python_codecs

from penstock.protocol import apis
from penstock.protocol.messages.api_versions import ApiVersionsRequest
from support.broker_process import BrokerProcess
from support.programs import required_program, run
from support.wire import Wire

Pair = tuple[bytes | None, bytes | None]

ALL_CODECS = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
KAFKA_PYTHON_CODECS = frozenset({"none", "gzip"}) | {
    name for name in ("snappy", "lz4", "zstd") if getattr(kafka_python_codecs, f"has_{name}")()
}
PATIENCE_S = 30.0
# Some compress badly, so that a batch has more than one block of any codec. The first compress well, each by itself:
# clients send a batch that does not get smaller as it is, and nobody knows how many records the first batch will have.
RECORDS = [
    *((b"key-%d" % number, b"value-%d-" % number + b"abc" * (100 + number)) for number in range(200)),
    *((b"large-%d" % number, Random(number).randbytes(20_000).hex().encode()) for number in range(10)),
]


def confluent_write(broker: BrokerProcess, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": codec, "linger.ms": 20})
    for key, value in RECORDS:
        producer.produce(topic, value, key, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def confluent_read(broker: BrokerProcess, topic: str) -> list[Pair]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Pair] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        for message in consumer.consume(len(RECORDS), timeout=0.5):
            assert message.error() is None, message.error()
            found.append((message.key(), message.value()))
    consumer.close()
    return found


def kafka_python_write(broker: BrokerProcess, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=broker.kafka, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    futures = [producer.send(topic, value, key, partition=0) for key, value in RECORDS]
    producer.flush(PATIENCE_S)
    for future in futures:
        future.get(PATIENCE_S)
    producer.close()


def kafka_python_read(broker: BrokerProcess, topic: str) -> list[Pair]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka, group_id=None, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, 0)])
    found: list[Pair] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    return found


def aiokafka_write(broker: BrokerProcess, topic: str, codec: str) -> None:
    async def write() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.kafka, compression_type=None if codec == "none" else codec, linger_ms=20
        )
        await producer.start()
        for sent in [await producer.send(topic, value, key, partition=0) for key, value in RECORDS]:
            await sent
        await producer.stop()

    asyncio.run(write())


def aiokafka_read(broker: BrokerProcess, topic: str) -> list[Pair]:
    async def read() -> list[Pair]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.kafka, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioPartition(topic, 0)])
        found: list[Pair] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < len(RECORDS) and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [(record.key, record.value) for record in records]
        await consumer.stop()
        return found

    return asyncio.run(read())


def kcat_write(broker: BrokerProcess, topic: str, codec: str) -> None:
    lines = b"".join(key + b":" + value + b"\n" for key, value in RECORDS)
    kcat = required_program("kcat")
    done = run([kcat, "-b", broker.kafka, "-P", "-t", topic, "-p", "0", "-K:", "-z", codec], lines)
    assert done.returncode == 0, done.stderr


def kcat_read(broker: BrokerProcess, topic: str) -> list[Pair]:
    kcat = required_program("kcat")
    done = run([kcat, "-b", broker.kafka, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K:"])
    assert done.returncode == 0, done.stderr
    pairs = [line.partition(b":") for line in done.stdout.splitlines()]
    return [(key, value) for key, _, value in pairs]


WRITERS: dict[str, tuple[frozenset[str], Callable[[BrokerProcess, str, str], None]]] = {
    "confluent-kafka": (ALL_CODECS, confluent_write),
    "kafka-python": (KAFKA_PYTHON_CODECS, kafka_python_write),
    "aiokafka": (ALL_CODECS, aiokafka_write),
    "kcat": (ALL_CODECS, kcat_write),
}
READERS: dict[str, tuple[frozenset[str], Callable[[BrokerProcess, str], list[Pair]]]] = {
    "confluent-kafka": (ALL_CODECS, confluent_read),
    "kafka-python": (KAFKA_PYTHON_CODECS, kafka_python_read),
    "aiokafka": (ALL_CODECS, aiokafka_read),
    "kcat": (ALL_CODECS, kcat_read),
}
LIBRDKAFKA = ("confluent-kafka", "kcat")
WRITTEN = [(writer, codec) for writer, (codecs, _) in WRITERS.items() for codec in sorted(codecs)]
RECODED = [("gzip", "lz4"), ("none", "zstd"), ("zstd", "uncompressed"), ("snappy", "gzip"), ("lz4", "snappy")]


def codec_of(records: bytes) -> str:
    """The codec of the first batch, from its attributes."""
    return ("none", "gzip", "snappy", "lz4", "zstd")[records[22] & 0x07]


def has_coordinators(wire: Wire) -> bool:
    """Without them librdkafka takes the broker for one too old for lz4, and sends such batches uncompressed."""
    hello = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    listed = wire.ask(apis.API_VERSIONS, 3, hello)["api_keys"]
    return any(entry["api_key"] == apis.FIND_COORDINATOR.key for entry in listed)


def readable_by_all(broker: BrokerProcess, topic: str, codec: str) -> None:
    for reader, (codecs, read) in READERS.items():
        if codec in codecs:
            assert read(broker, topic) == RECORDS, f"as read by {reader}"


@pytest.mark.parametrize(("writer", "codec"), WRITTEN)
def test_every_client_reads_what_another_wrote(broker: BrokerProcess, topic: str, writer: str, codec: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
    WRITERS[writer][1](broker, topic, codec)
    with Wire(broker.address) as wire:
        found = wire.fetch(topic, 0)
        assert found["high_watermark"] == len(RECORDS)
        if not (codec == "lz4" and writer in LIBRDKAFKA and not has_coordinators(wire)):
            assert codec_of(found["records"]) == codec
    readable_by_all(broker, topic, codec)


@pytest.mark.parametrize(("sent", "stored"), RECODED)
def test_every_client_reads_what_the_broker_compressed_anew(
    broker: BrokerProcess, topic: str, sent: str, stored: str
) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, compression_type=stored)
        confluent_write(broker, topic, sent)
        codec = "none" if stored == "uncompressed" else stored
        assert codec_of(wire.fetch(topic, 0)["records"]) == codec
    readable_by_all(broker, topic, codec)
