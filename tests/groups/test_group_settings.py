"""Settings of groups as real clients set them, where a group begins, and what /metrics says of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.confluent import code_of, join_without_reading, read, send
from support.crew import SETTINGS, Crew
from support.waiting import until

Joining = Callable[..., Consumer]


@pytest.fixture
def created(admin: AdminClient, broker: BrokerProcess, topic: str) -> str:
    """A topic with three messages."""
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    send(broker, topic, [b"1", b"2", b"3"])
    return topic


@pytest.fixture
def joining() -> Iterator[Joining]:
    """Makes members of the group that is named as its topic; each is in when it is given out."""
    made: list[Consumer] = []

    def join(broker: BrokerProcess, topic: str, reset: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.kafka,
                "group.id": topic,
                "auto.offset.reset": reset,
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        made.append(consumer)
        join_without_reading(consumer, topic)
        return consumer

    yield join
    for consumer in made:
        consumer.close()


def alter(admin: AdminClient, group: str, **settings: str) -> None:
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
    (answer,) = admin.incremental_alter_configs([resource]).values()
    answer.result()


def described(admin: AdminClient, group: str) -> dict[str, str | None]:
    (answer,) = admin.describe_configs([ConfigResource(ResourceType.GROUP, group)]).values()
    return {name: entry.value for name, entry in answer.result().items()}


def committed(admin: AdminClient, group: str, *places: TopicPartition) -> list[int]:
    asked = [ConsumerGroupTopicPartitions(group, list(places) or None)]
    answer = admin.list_consumer_group_offsets(asked)[group].result()
    return [found.offset for found in answer.topic_partitions]


class TestSettings:
    def test_unknown_settings_are_refused(self, admin: AdminClient, topic: str) -> None:
        with pytest.raises(KafkaException) as refusal:
            alter(admin, topic, retention_ms="1")
        assert code_of(refusal) == KafkaError.INVALID_CONFIG

    def test_settings_survive_a_crash(self, new_broker: BrokerFactory, topic: str) -> None:
        broker = new_broker(SETTINGS)
        alter(AdminClient({"bootstrap.servers": broker.kafka}), topic, penstock_paused="true")
        broker.kill()
        broker.start()
        assert described(AdminClient({"bootstrap.servers": broker.kafka}), topic)["penstock.paused"] == "true"

    def test_kafka_python_sets_and_reads_them(self, broker: BrokerProcess, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=broker.kafka)
        try:
            wanted = {"consumer.session.timeout.ms": "50000"}
            admin.alter_configs([PythonResource(ConfigResourceType.GROUP, topic, configs=wanted)])
        finally:
            admin.close()
        found = described(AdminClient({"bootstrap.servers": broker.kafka}), topic)
        assert found["consumer.session.timeout.ms"] == "50000"

    def test_a_group_that_is_deleted_loses_them(self, admin: AdminClient, created: str) -> None:
        place = TopicPartition(created, 0, 1)
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(created, [place])])[created].result()
        alter(admin, created, penstock_paused="true")
        admin.delete_consumer_groups([created])[created].result()
        assert described(admin, created)["penstock.paused"] == "false"


class TestFirstStart:
    def test_the_client_decides_unless_the_group_is_told_otherwise(
        self, broker: BrokerProcess, admin: AdminClient, created: str, joining: Joining
    ) -> None:
        assert [message.offset() for message in read(joining(broker, created, "earliest"), 3)] == [0, 1, 2]
        assert committed(admin, created) == []

    def test_a_group_begins_at_the_beginning(
        self, broker: BrokerProcess, admin: AdminClient, created: str, joining: Joining
    ) -> None:
        alter(admin, created, penstock_offset_initial="earliest")
        assert [message.offset() for message in read(joining(broker, created, "error"), 3)] == [0, 1, 2]
        assert committed(admin, created) == [0]

    def test_the_end_stays_where_it_was_first_asked_for(
        self, broker: BrokerProcess, admin: AdminClient, created: str, joining: Joining
    ) -> None:
        alter(admin, created, penstock_offset_initial="latest")
        first = joining(broker, created, "earliest")
        until(lambda: first.poll(0) or committed(admin, created) == [3], "the end is committed")
        first.close()
        send(broker, created, [b"4"])
        assert [message.offset() for message in read(joining(broker, created, "error"), 1)] == [3]

    def test_looking_at_a_group_that_does_not_run_changes_nothing(self, admin: AdminClient, created: str) -> None:
        alter(admin, created, penstock_offset_initial="latest")
        assert committed(admin, created, TopicPartition(created, 0)) == [-1001]
        assert committed(admin, created) == []


class TestMetrics:
    def test_a_broker_without_groups_says_so(self, new_broker: BrokerFactory) -> None:
        broker = new_broker()
        found = broker.metrics()
        assert not [name for name, _ in found if name == "penstock_groups"]
        assert found["penstock_group_members", ()] == 0
        assert found["penstock_group_rebalances_total", ()] == 0

    def test_groups_are_counted_and_their_lag_is_shown(
        self, new_broker: BrokerFactory, topic: str, joining: Joining
    ) -> None:
        broker = new_broker(SETTINGS | {"groups.lag_series": 1})
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
        send(broker, topic, [b"1", b"2", b"3"])
        member = joining(broker, topic, "earliest")
        read(member, 3)
        member.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        found = broker.metrics()
        assert found["penstock_groups", (("state", "Stable"), ("type", "classic"))] == 1
        assert found["penstock_group_members", ()] == 1
        assert found["penstock_group_rebalances_total", ()] == 1
        assert found["penstock_offset_commits_total", ()] == 1
        assert found["penstock_group_shards_loading", ()] == 0
        assert found["penstock_group_lag", (("group", topic), ("partition", "0"), ("topic", topic))] == 2
        assert found["penstock_group_lag_left_out", ()] == 0
        member.commit(offsets=[TopicPartition(topic, 1, 0)], asynchronous=False)
        found = broker.metrics()
        assert len([name for name, _ in found if name == "penstock_group_lag"]) == 1
        assert found["penstock_group_lag_left_out", ()] == 1

    def test_a_member_that_is_not_heard_from_is_counted(
        self, new_broker: BrokerFactory, topic: str, tmp_path: Path
    ) -> None:
        broker = new_broker(SETTINGS)
        with Crew(broker, topic, tmp_path) as crew:
            crew.start("a")
            crew.wait_for_members("a")
            assert broker.metric("penstock_group_members_expired_total") == 0
            crew.kill("a")
            until(lambda: broker.metric("penstock_group_members_expired_total") == 1, "the member is out")
            assert broker.metric("penstock_group_members") == 0
