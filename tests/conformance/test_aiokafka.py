"""aiokafka: the asyncio client."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from support.broker_process import BrokerProcess

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
PATIENCE_MS = 30_000
LARGEST = 10_000_000
OK = 0


@pytest_asyncio.fixture
async def admin(broker: BrokerProcess) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.kafka)
    await client.start()
    yield client
    await client.close()


async def create(admin: AIOKafkaAdminClient, topic: str, partitions: int = 1, **more: Any) -> int:
    response = await admin.create_topics([NewTopic(topic, partitions, 1, **more)])
    code: int = response.topic_errors[0][1]
    return code


@pytest_asyncio.fixture
async def created(admin: AIOKafkaAdminClient, topic: str) -> str:
    """A topic of three partitions."""
    assert await create(admin, topic, 3) == OK
    return topic


async def send(broker: BrokerProcess, topic: str, values: list[bytes | None], **more: Any) -> list[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, max_request_size=LARGEST, **more)
    await producer.start()
    try:
        return [await sent for sent in [await producer.send(topic, value, partition=0) for value in values]]
    finally:
        await producer.stop()


async def consumer_of(broker: BrokerProcess, **more: Any) -> AIOKafkaConsumer:
    settings: dict[str, Any] = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"}
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.kafka, **(settings | more))
    await consumer.start()
    return consumer


async def read(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while len(found) < count and time.monotonic() < deadline:
        for records in (await consumer.getmany(timeout_ms=500, max_records=count - len(found))).values():
            found += records
    assert len(found) == count
    return found


async def read_from(broker: BrokerProcess, topic: str, offset: int, count: int, **more: Any) -> list[Any]:
    consumer = await consumer_of(broker, **more)
    try:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        consumer.seek(at, offset)
        return await read(consumer, count)
    finally:
        await consumer.stop()


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_what_is_produced_is_consumed_in_order(broker: BrokerProcess, created: str, acks: int | str) -> None:
    values: list[bytes | None] = [b"value %d" % number for number in range(100)]
    await send(broker, created, values, acks=acks)
    found = await read_from(broker, created, 0, 100)
    assert [record.value for record in found] == values
    assert [record.offset for record in found] == list(range(100))


@pytest.mark.parametrize("codec", CODECS)
async def test_every_codec_survives_the_way(broker: BrokerProcess, created: str, codec: str | None) -> None:
    values: list[bytes | None] = [b"value %d " % number * 50 for number in range(300)]
    await send(broker, created, values, compression_type=codec, linger_ms=20)
    assert [record.value for record in await read_from(broker, created, 0, 300)] == values


async def test_an_idempotent_producer_delivers_each_message_once(broker: BrokerProcess, created: str) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(1000)]
    reports = await send(broker, created, values, enable_idempotence=True, max_batch_size=500)
    assert [report.offset for report in reports] == list(range(1000))
    assert [record.value for record in await read_from(broker, created, 0, 1000)] == values


async def test_keys_headers_nulls_and_timestamps_are_kept(broker: BrokerProcess, created: str) -> None:
    when = int(time.time() * 1000) - 5000
    headers = [("first", b"1"), ("empty", b""), ("null", None), ("first", b"again")]
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka)
    await producer.start()
    await producer.send_and_wait(created, b"value", b"key", 0, when, headers)
    await producer.send_and_wait(created, None, b"tombstone", 0, when)
    await producer.stop()
    found = await read_from(broker, created, 0, 2)
    assert [(record.key, record.value) for record in found] == [(b"key", b"value"), (b"tombstone", None)]
    assert list(found[0].headers) == headers
    assert {record.timestamp for record in found} == {when}


async def test_large_messages_arrive_whole(admin: AIOKafkaAdminClient, broker: BrokerProcess, topic: str) -> None:
    assert await create(admin, topic, topic_configs={"max.message.bytes": str(LARGEST)}) == OK
    values: list[bytes | None] = [os.urandom(size) for size in (900_000, 4_000_000)]
    await send(broker, topic, values)
    assert [record.value for record in await read_from(broker, topic, 0, 2)] == values


async def test_many_small_messages_arrive_on_all_partitions(broker: BrokerProcess, created: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka, linger_ms=10)
    await producer.start()
    for number in range(3000):
        await producer.send(created, b"%d" % number, b"key %d" % (number % 50))
    await producer.stop()
    consumer = await consumer_of(broker)
    partitions = [TopicPartition(created, partition) for partition in range(3)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    found = await read(consumer, 3000)
    await consumer.stop()
    assert {record.value for record in found} == {b"%d" % number for number in range(3000)}
    assert {record.partition for record in found} == {0, 1, 2}


async def test_a_reader_begins_where_it_is_told(broker: BrokerProcess, created: str) -> None:
    await send(broker, created, [b"%d" % number for number in range(10)])
    consumer = await consumer_of(broker)
    at = TopicPartition(created, 0)
    consumer.assign([at])
    consumer.seek(at, 7)
    assert [record.value for record in await read(consumer, 3)] == [b"7", b"8", b"9"]
    await consumer.seek_to_beginning(at)
    assert (await read(consumer, 10))[0].value == b"0"
    await consumer.seek_to_end(at)
    assert await consumer.position(at) == 10
    await send(broker, created, [b"next"])
    assert [record.value for record in await read(consumer, 1)] == [b"next"]
    await consumer.stop()


async def test_offsets_are_found_by_time_and_at_the_ends(broker: BrokerProcess, created: str) -> None:
    base = int(time.time() * 1000) - 60_000
    producer = AIOKafkaProducer(bootstrap_servers=broker.kafka)
    await producer.start()
    for number in (0, 1, 2, 5, 3):
        await producer.send_and_wait(created, b"x", partition=0, timestamp_ms=base + number * 1000)
    await producer.stop()
    consumer = await consumer_of(broker)
    at = TopicPartition(created, 0)
    assert await consumer.beginning_offsets([at]) == {at: 0}
    assert await consumer.end_offsets([at]) == {at: 5}
    found = {delta: (await consumer.offsets_for_times({at: base + delta}))[at] for delta in (0, 1, 2500, 5001)}
    await consumer.stop()
    assert {delta: one.offset for delta, one in found.items() if one} == {0: 0, 1: 1, 2500: 3}
    assert found[2500].timestamp == base + 5000
    assert found[5001] is None


async def settings_of(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((code, message, _, _, entries),) = response.resources
    assert code == OK, message
    return {entry[0]: entry[1] for entry in entries}


async def test_a_topic_is_created_with_its_settings_and_described(admin: AIOKafkaAdminClient, topic: str) -> None:
    assert await create(admin, topic, 4, topic_configs={"retention.ms": "60000"}) == OK
    (described,) = await admin.describe_topics([topic])
    assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1, 2, 3]
    assert topic in await admin.list_topics()
    assert (await settings_of(admin, topic))["retention.ms"] == "60000"


async def test_settings_are_replaced(admin: AIOKafkaAdminClient, created: str) -> None:
    for configs in ({"retention.ms": "1000", "segment.bytes": "4096"}, {"retention.ms": "2000"}):
        (response,) = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created, configs)])
        assert response.resources[0][0] == OK
    settings = await settings_of(admin, created)
    assert (settings["retention.ms"], settings["segment.bytes"]) == ("2000", "1073741824")


async def test_partitions_are_added(admin: AIOKafkaAdminClient, created: str) -> None:
    response = await admin.create_partitions({created: NewPartitions(5)})
    assert response.topic_errors[0][1] == OK
    (described,) = await admin.describe_topics([created])
    assert len(described["partitions"]) == 5


async def test_records_are_deleted_up_to_an_offset(
    admin: AIOKafkaAdminClient, broker: BrokerProcess, created: str
) -> None:
    await send(broker, created, [b"%d" % number for number in range(10)])
    at = TopicPartition(created, 0)
    assert await admin.delete_records({at: RecordsToDelete(6)}) == {at: 6}
    found = await read_from(broker, created, 6, 4)
    assert [record.value for record in found] == [b"6", b"7", b"8", b"9"]


async def test_a_deleted_topic_is_gone(admin: AIOKafkaAdminClient, created: str) -> None:
    assert (await admin.delete_topics([created])).topic_error_codes == [(created, OK)]
    assert created not in await admin.list_topics()
    again = await admin.delete_topics([created])
    assert again.topic_error_codes == [(created, kafka_errors.UnknownTopicOrPartitionError.errno)]


async def test_the_cluster_is_described(admin: AIOKafkaAdminClient, broker: BrokerProcess) -> None:
    cluster = await admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [broker.kafka]
    assert cluster["controller_id"] == 1


async def test_topics_that_cannot_be_are_refused(admin: AIOKafkaAdminClient, created: str) -> None:
    assert await create(admin, created) == kafka_errors.TopicAlreadyExistsError.errno
    assert await create(admin, "not/a/name") == kafka_errors.InvalidTopicError.errno
    assert await create(admin, f"{created}-2", topic_configs={"no.such.setting": "1"}) == 40


async def test_a_message_larger_than_the_topic_allows_is_refused(
    admin: AIOKafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    assert await create(admin, topic, topic_configs={"max.message.bytes": "1000"}) == OK
    with pytest.raises(kafka_errors.MessageSizeTooLargeError):
        await send(broker, topic, [b"x" * 2000])
    assert (await send(broker, topic, [b"small"]))[0].offset == 0


async def test_a_topic_is_created_by_the_first_message_to_it(broker: BrokerProcess, topic: str) -> None:
    await send(broker, topic, [b"first"])
    assert (await read_from(broker, topic, 0, 1))[0].value == b"first"


async def test_an_offset_out_of_range_is_reset_or_reported(broker: BrokerProcess, created: str) -> None:
    await send(broker, created, [b"0", b"1"])
    found = await read_from(broker, created, 1000, 2, auto_offset_reset="earliest")
    assert found[0].value == b"0"
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        await read_from(broker, created, 1000, 1)
