"""confluent-kafka's admin client: topics, settings, partitions, records, the cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
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
    ResourceType,
)

from support.broker_process import BrokerProcess
from support.confluent import code_of, read, send
from support.waiting import PATIENCE_S
from support.wire import Wire, batch_of


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
    assert set((settings["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
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


def test_defaults_of_the_broker_reach_its_topics(new_broker: Callable[..., BrokerProcess], topic: str) -> None:
    broker = new_broker()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    for value in ("1000", "2000"):
        entry = ConfigEntry("message.max.bytes", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        assert settings_of(admin, topic)["max.message.bytes"].value == value
        with Wire(broker.address) as wire:
            assert wire.produce(topic, batch_of(b"x" * (int(value) - 200)))["error_code"] == 0
            assert wire.produce(topic, batch_of(b"x" * int(value)))["error_code"] == KafkaError.MSG_SIZE_TOO_LARGE
    broker.kill()
    broker.restart()
    assert settings_of(admin, topic)["max.message.bytes"].value == "2000"


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
        pytest.param(
            NewTopic("two-replicas", 1, 2),
            KafkaError.INVALID_REPLICATION_FACTOR,
            marks=pytest.mark.log_files("a replication factor has no effect: copies are the database's matter"),
        ),
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


def test_a_topic_that_is_not_there_is_an_error(new_broker: Callable[..., BrokerProcess], topic: str) -> None:
    broker = new_broker({"broker.auto_create_topics": "false"})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    with pytest.raises(KafkaException) as error:
        admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    assert code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.kafka, "topic.metadata.propagation.max.ms": 100})
    producer.produce(topic, b"lost", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert errors[0] is not None
    assert errors[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
    assert admin.list_topics(timeout=PATIENCE_S).topics == {}
