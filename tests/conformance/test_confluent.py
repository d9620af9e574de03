"""confluent-kafka, that is librdkafka: the client most languages stand on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support.broker_process import BrokerProcess

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_S = 30.0


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.kafka})


@pytest.fixture
def created(admin: AdminClient, topic: str) -> str:
    """A topic of three partitions."""
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])[topic].result(PATIENCE_S)
    return topic


@pytest.fixture
def consumer(broker: BrokerProcess) -> Iterator[Consumer]:
    client = consumer_of(broker)
    yield client
    client.close()


def consumer_of(broker: BrokerProcess, **more: Any) -> Consumer:
    settings = {
        "bootstrap.servers": broker.kafka,
        "group.id": "never joined",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
    }
    return Consumer(settings | more)


def send(broker: BrokerProcess, topic: str, values: list[bytes | None], **more: Any) -> list[Message]:
    """Produces to partition 0 and gives the reports; every message must have arrived."""
    reports: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5} | more)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=report)
    assert producer.flush(PATIENCE_S) == 0
    assert len(reports) == len(values)
    return reports


def read(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=0.5):
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count
    return found


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = error.value.args[0].code()
    return code


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
    headers = [("first", b"1"), ("empty", b""), ("null", None), ("first", b"again"), ("bytes", bytes(range(256)))]
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
        assert last.get(message.key(), -1) < int(message.value())
        last[message.key()] = int(message.value())


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
        assert reached.error().code() == KafkaError._PARTITION_EOF
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
    specs = [OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp(), OffsetSpec.for_timestamp(base + 1)]
    partition = TopicPartition(created, 0)
    results = [admin.list_offsets({partition: spec})[partition].result(PATIENCE_S) for spec in specs]
    assert [result.offset for result in results] == [0, 5, 3, 1]
    assert results[2].timestamp == base + 5000


def test_a_topic_is_created_with_its_settings_and_described(admin: AdminClient, topic: str) -> None:
    config = {"retention.ms": "60000", "cleanup.policy": "compact,delete"}
    admin.create_topics([NewTopic(topic, 4, 1, config=config)])[topic].result(PATIENCE_S)
    description = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    assert description.name == topic
    assert [partition.id for partition in description.partitions] == [0, 1, 2, 3]
    assert all(partition.leader.id == 1 for partition in description.partitions)
    settings = settings_of(admin, topic)
    assert settings["retention.ms"].value == "60000"
    assert settings["cleanup.policy"].value == "compact,delete"
    assert settings["segment.bytes"].is_default
    assert topic in admin.list_topics(timeout=PATIENCE_S).topics


def settings_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    return found


def test_settings_are_changed_one_by_one(admin: AdminClient, created: str) -> None:
    def alter(name: str, value: str | None, kind: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=kind)
        resource = ConfigResource(ResourceType.TOPIC, created, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    alter("retention.ms", "1000", AlterConfigOpType.SET)
    alter("segment.bytes", "4096", AlterConfigOpType.SET)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    settings = settings_of(admin, created)
    assert (settings["retention.ms"].value, settings["segment.bytes"].value) == ("1000", "4096")
    assert set(settings["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    alter("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)
    settings = settings_of(admin, created)
    assert (settings["retention.ms"].value, settings["segment.bytes"].value) == ("1209600000", "4096")
    assert settings["cleanup.policy"].value == "delete"


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_settings_are_replaced_all_together(admin: AdminClient, created: str) -> None:
    for config in ({"retention.ms": "1000", "segment.bytes": "4096"}, {"retention.ms": "2000"}):
        resource = ConfigResource(ResourceType.TOPIC, created, set_config=config)
        admin.alter_configs([resource])[resource].result(PATIENCE_S)
    settings = settings_of(admin, created)
    assert settings["retention.ms"].value == "2000"
    assert settings["segment.bytes"].is_default


def test_partitions_are_added(admin: AdminClient, broker: BrokerProcess, created: str, consumer: Consumer) -> None:
    admin.create_partitions([NewPartitions(created, 5)])[created].result(PATIENCE_S)
    assert len(admin.list_topics(created, timeout=PATIENCE_S).topics[created].partitions) == 5
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(created, b"new", partition=4)
    assert producer.flush(PATIENCE_S) == 0
    consumer.assign([TopicPartition(created, 4, 0)])
    assert read(consumer, 1)[0].value() == b"new"
    with pytest.raises(KafkaException) as error:
        admin.create_partitions([NewPartitions(created, 2)])[created].result(PATIENCE_S)
    assert code_of(error) == KafkaError.INVALID_PARTITIONS


def test_records_are_deleted_up_to_an_offset(
    admin: AdminClient, broker: BrokerProcess, created: str, consumer: Consumer
) -> None:
    send(broker, created, [b"%d" % number for number in range(10)], **{"batch.num.messages": 1})
    upto = TopicPartition(created, 0, 6)
    assert admin.delete_records([upto])[upto].result(PATIENCE_S).low_watermark == 6
    assert consumer.get_watermark_offsets(TopicPartition(created, 0), PATIENCE_S) == (6, 10)
    consumer.assign([TopicPartition(created, 0, OFFSET_BEGINNING)])
    assert read(consumer, 1)[0].value() == b"6"
    too_far = TopicPartition(created, 0, 11)
    with pytest.raises(KafkaException) as error:
        admin.delete_records([too_far])[too_far].result(PATIENCE_S)
    assert code_of(error) == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_deleted_topic_is_gone_and_a_namesake_is_empty(
    admin: AdminClient, broker: BrokerProcess, created: str, consumer: Consumer
) -> None:
    send(broker, created, [b"old"])
    admin.delete_topics([created])[created].result(PATIENCE_S)
    assert created not in admin.list_topics(timeout=PATIENCE_S).topics
    with pytest.raises(KafkaException) as error:
        admin.delete_topics([created])[created].result(PATIENCE_S)
    assert code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART
    admin.create_topics([NewTopic(created, 1, 1)])[created].result(PATIENCE_S)
    send(broker, created, [b"new"])
    consumer.assign([TopicPartition(created, 0, OFFSET_BEGINNING)])
    found = read(consumer, 1)[0]
    assert (found.value(), found.offset()) == (b"new", 0)


def test_the_cluster_is_described(admin: AdminClient, broker: BrokerProcess) -> None:
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.kafka]
    assert cluster.controller.id == 1
    assert cluster.cluster_id == admin.cluster_id(PATIENCE_S)
    resource = ConfigResource(ResourceType.BROKER, "1")
    settings = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert settings["log.retention.ms"].value == "1209600000"


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("not/a/name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("two-replicas", 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("odd", 1, 1, config={"retention.msec": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("odd", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused(admin: AdminClient, new: NewTopic, code: int) -> None:
    with pytest.raises(KafkaException) as error:
        admin.create_topics([new])[new.topic].result(PATIENCE_S)
    assert code_of(error) == code


def test_a_topic_cannot_be_created_twice(admin: AdminClient, created: str) -> None:
    with pytest.raises(KafkaException) as error:
        admin.create_topics([NewTopic(created, 1, 1)])[created].result(PATIENCE_S)
    assert code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS


def test_an_unknown_setting_of_a_topic_is_refused(admin: AdminClient, created: str) -> None:
    entry = ConfigEntry("retention.msec", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, created, incremental_configs=[entry])
    with pytest.raises(KafkaException) as error:
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    assert code_of(error) == KafkaError.INVALID_CONFIG
    assert "retention.ms" in error.value.args[0].str()


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


def test_reading_a_topic_that_is_not_there_is_an_error(broker: BrokerProcess, topic: str) -> None:
    consumer = consumer_of(broker, **{"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 500})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error().code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
    finally:
        consumer.close()


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
            assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        else:
            assert message.value() == value
    finally:
        consumer.close()
