"""kafka-python: pure Python, with a protocol implementation of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka import codec as codecs
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from penstock.admin import Cluster
from penstock.admin import TopicPartition as LogPartition
from support.broker_process import BrokerProcess

CODECS = [
    None,
    "gzip",
    *(name for name in ("snappy", "lz4", "zstd") if getattr(codecs, f"has_{name}")()),
]
PATIENCE_S = 30.0
LARGEST = 10_000_000


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.kafka)
    yield client
    client.close()


@pytest.fixture
def created(admin: KafkaAdminClient, topic: str) -> str:
    """A topic of three partitions."""
    admin.create_topics({topic: {"num_partitions": 3}})
    return topic


def consumer_of(broker: BrokerProcess, **more: Any) -> KafkaConsumer:
    settings: dict[str, Any] = {"group_id": None, "auto_offset_reset": "none", "enable_auto_commit": False}
    return KafkaConsumer(bootstrap_servers=broker.kafka, **(settings | more))


def send(broker: BrokerProcess, topic: str, values: list[bytes | None], **more: Any) -> list[Any]:
    """Produces to partition 0; every message must have arrived."""
    producer = KafkaProducer(bootstrap_servers=broker.kafka, max_request_size=LARGEST, **more)
    try:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(PATIENCE_S)
        return [future.get(PATIENCE_S) for future in futures]
    finally:
        producer.close()


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += records
    assert len(found) == count
    return found


def read_from(broker: BrokerProcess, topic: str, offset: int, count: int, **more: Any) -> list[Any]:
    consumer = consumer_of(broker, **more)
    try:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        consumer.seek(at, offset)
        return read(consumer, count)
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_what_is_produced_is_consumed_in_order(broker: BrokerProcess, created: str, acks: int | str) -> None:
    values: list[bytes | None] = [b"value %d" % number for number in range(100)]
    send(broker, created, values, acks=acks, enable_idempotence=False)
    found = read_from(broker, created, 0, 100)
    assert [record.value for record in found] == values
    assert [record.offset for record in found] == list(range(100))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_survives_the_way(broker: BrokerProcess, created: str, codec: str | None) -> None:
    values: list[bytes | None] = [b"value %d " % number * 50 for number in range(300)]
    send(broker, created, values, compression_type=codec, linger_ms=20)
    assert [record.value for record in read_from(broker, created, 0, 300)] == values


def test_an_idempotent_producer_delivers_each_message_once(broker: BrokerProcess, created: str) -> None:
    values: list[bytes | None] = [b"%d" % number for number in range(1000)]
    reports = send(broker, created, values, enable_idempotence=True, acks="all", batch_size=500)
    assert [report.offset for report in reports] == list(range(1000))
    assert [record.value for record in read_from(broker, created, 0, 1000)] == values


def test_keys_headers_nulls_and_timestamps_are_kept(broker: BrokerProcess, created: str) -> None:
    when = int(time.time() * 1000) - 5000
    headers = [("first", b"1"), ("empty", b""), ("first", b"again")]
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    producer.send(created, b"value", b"key", headers, partition=0, timestamp_ms=when)
    producer.send(created, None, b"tombstone", partition=0, timestamp_ms=when)
    producer.flush(PATIENCE_S)
    producer.close()
    found = read_from(broker, created, 0, 2)
    assert [(record.key, record.value) for record in found] == [(b"key", b"value"), (b"tombstone", None)]
    assert list(found[0].headers) == headers
    assert {record.timestamp for record in found} == {when}


def test_large_messages_arrive_whole(admin: KafkaAdminClient, broker: BrokerProcess, topic: str) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": str(LARGEST)}}})
    values: list[bytes | None] = [os.urandom(size) for size in (900_000, 4_000_000)]
    send(broker, topic, values)
    assert [record.value for record in read_from(broker, topic, 0, 2)] == values


def test_many_small_messages_arrive_on_all_partitions(broker: BrokerProcess, created: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.kafka, linger_ms=10)
    for number in range(3000):
        producer.send(created, b"%d" % number, b"key %d" % (number % 50))
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(created, partition) for partition in range(3)])
    consumer.seek_to_beginning()
    found = read(consumer, 3000)
    consumer.close()
    assert {record.value for record in found} == {b"%d" % number for number in range(3000)}
    assert {record.partition for record in found} == {0, 1, 2}


def test_a_reader_begins_where_it_is_told(broker: BrokerProcess, created: str) -> None:
    send(broker, created, [b"%d" % number for number in range(10)])
    consumer = consumer_of(broker)
    at = TopicPartition(created, 0)
    consumer.assign([at])
    consumer.seek(at, 7)
    assert [record.value for record in read(consumer, 3)] == [b"7", b"8", b"9"]
    consumer.seek_to_beginning(at)
    assert read(consumer, 10)[0].value == b"0"
    consumer.seek_to_end(at)
    assert consumer.position(at) == 10
    send(broker, created, [b"next"])
    assert [record.value for record in read(consumer, 1)] == [b"next"]
    consumer.close()


def test_offsets_are_found_by_time_and_at_the_ends(broker: BrokerProcess, created: str) -> None:
    base = int(time.time() * 1000) - 60_000
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for number in (0, 1, 2, 5, 3):
        producer.send(created, b"x", partition=0, timestamp_ms=base + number * 1000).get(PATIENCE_S)
    producer.close()
    consumer = consumer_of(broker)
    at = TopicPartition(created, 0)
    assert consumer.beginning_offsets([at]) == {at: 0}
    assert consumer.end_offsets([at]) == {at: 5}
    found = {delta: consumer.offsets_for_times({at: base + delta})[at] for delta in (0, 1, 2500, 5001)}
    consumer.close()
    assert {delta: one.offset for delta, one in found.items() if one} == {0: 0, 1: 1, 2500: 3}
    assert found[2500].timestamp == base + 5000
    assert found[5001] is None


def test_a_topic_is_created_with_its_settings_and_described(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_topics({topic: {"num_partitions": 4, "configs": {"retention.ms": "60000"}}})
    (described,) = admin.describe_topics([topic])
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1, 2, 3]
    assert {partition["leader_id"] for partition in described["partitions"]} == {1}
    assert topic in admin.list_topics()
    (by_id,) = admin.describe_topics([UUID(described["topic_id"])])
    assert by_id["name"] == topic
    settings = settings_of(admin, topic)
    assert settings["retention.ms"]["value"] == "60000"


def settings_of(admin: KafkaAdminClient, topic: str) -> dict[str, Any]:
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    settings: dict[str, Any] = found["topic"][topic]
    return settings


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "legacy"])
def test_settings_are_changed_and_reset(admin: KafkaAdminClient, created: str, incremental: bool) -> None:
    configs = {"retention.ms": "1000", "segment.bytes": "4096"}
    resource = ConfigResource(ConfigResourceType.TOPIC, created, configs)
    admin.alter_configs([resource], incremental=incremental)
    settings = settings_of(admin, created)
    assert {name: settings[name]["value"] for name in configs} == configs
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, created, ["retention.ms"])], incremental=incremental)
    settings = settings_of(admin, created)
    assert settings["retention.ms"]["value"] == "1209600000"
    assert settings["segment.bytes"]["value"] == "4096"


def test_partitions_are_added(admin: KafkaAdminClient, created: str) -> None:
    admin.create_partitions({created: 5})
    (described,) = admin.describe_topics([created])
    assert len(described["partitions"]) == 5
    with pytest.raises(kafka_errors.InvalidPartitionsError):
        admin.create_partitions({created: 2})


def test_records_are_deleted_up_to_an_offset(admin: KafkaAdminClient, broker: BrokerProcess, created: str) -> None:
    send(broker, created, [b"%d" % number for number in range(10)])
    at = TopicPartition(created, 0)
    result = admin.delete_records({at: 6})
    assert result[at]["low_watermark"] == 6
    found = read_from(broker, created, 6, 4)
    assert [record.value for record in found] == [b"6", b"7", b"8", b"9"]


def test_a_deleted_topic_is_gone(admin: KafkaAdminClient, created: str) -> None:
    admin.delete_topics([created])
    assert created not in admin.list_topics()
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        admin.delete_topics([created])


def test_the_cluster_and_its_disk_are_described(admin: KafkaAdminClient, broker: BrokerProcess, created: str) -> None:
    cluster = admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [broker.kafka]
    assert cluster["controller_id"] == 1
    send(broker, created, [b"x" * 1000])
    (described,) = admin.describe_log_dirs([created])
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for folder in described["log_dirs"]
        for topic in folder["topics"]
        for partition in topic["partitions"]
    }
    assert sizes[0] > 1000
    assert sizes[1] == 0
    # Segments are a field of ours, which only clients that know it ask for.
    (log,) = Cluster(broker.kafka).log_dirs.segments([LogPartition(created, 0)])[1]
    assert [(each.base_offset, each.end_offset) for each in log.segments] == [(0, 1)]
    assert log.size_bytes == sizes[0]
    (again,) = admin.describe_log_dirs([created])
    assert [each["topics"] for each in again["log_dirs"]] == [each["topics"] for each in described["log_dirs"]]


def test_topics_that_cannot_be_are_refused(admin: KafkaAdminClient, created: str) -> None:
    with pytest.raises(kafka_errors.TopicAlreadyExistsError):
        admin.create_topics({created: {"num_partitions": 1}})
    with pytest.raises(kafka_errors.InvalidTopicError):
        admin.create_topics({"not/a/name": {"num_partitions": 1}})
    with pytest.raises(kafka_errors.InvalidConfigurationError):
        admin.create_topics({f"{created}-2": {"num_partitions": 1, "configs": {"no.such.setting": "1"}}})


@pytest.mark.log_files("a replication factor has no effect: copies are the database's matter")
def test_more_replicas_than_there_are_brokers_are_refused(admin: KafkaAdminClient, topic: str) -> None:
    with pytest.raises(kafka_errors.InvalidReplicationFactorError):
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 3}})


def test_a_message_larger_than_the_topic_allows_is_refused(
    admin: KafkaAdminClient, broker: BrokerProcess, topic: str
) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": "1000"}}})
    with pytest.raises(kafka_errors.MessageSizeTooLargeError):
        send(broker, topic, [b"x" * 2000])
    assert send(broker, topic, [b"small"])[0].offset == 0


def test_a_topic_is_created_by_the_first_message_to_it(broker: BrokerProcess, topic: str) -> None:
    send(broker, topic, [b"first"])
    assert read_from(broker, topic, 0, 1)[0].value == b"first"


def test_an_offset_out_of_range_is_reset_or_reported(broker: BrokerProcess, created: str) -> None:
    send(broker, created, [b"0", b"1"])
    assert read_from(broker, created, 1000, 2, auto_offset_reset="earliest")[0].value == b"0"
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        read_from(broker, created, 1000, 1)
