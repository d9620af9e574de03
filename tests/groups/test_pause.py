"""A group is paused and resumed: its members stay, receive nothing meanwhile, and miss nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.confluent import send
from support.crew import SETTINGS, Crew
from support.messages import place_of
from support.waiting import until

REBALANCES = "penstock_group_rebalances_total"


def wait_until_paused(crew: Crew, *names: str) -> None:
    """Nobody has a partition any more, everybody is still there, and nobody asks for another plan."""
    broker = crew.broker
    assert isinstance(broker, BrokerProcess)
    until(lambda: not crew.owned(), "the members have given up their partitions")

    def is_at_rest() -> bool:
        before = broker.metric(REBALANCES)
        crew.wait_for_members(*names)
        wait_for_more_to_read(crew)
        return broker.metric(REBALANCES) == before

    until(is_at_rest, "the group is at rest")


def wait_for_more_to_read(crew: Crew, count: int = 200) -> None:
    before = len(crew.history().produced)
    until(lambda: len(crew.history().produced) >= before + count, f"{count} more messages are sent")


@pytest.mark.parametrize(
    ("client", "strategy", "protocol"),
    [
        ("confluent", "range", "classic"),
        ("confluent", "cooperative-sticky", "classic"),
        ("confluent", "range", "consumer"),
        ("kafka-python", "sticky", "classic"),
        ("kafka-python", "cooperative-sticky", "classic"),
        ("aiokafka", "roundrobin", "classic"),
    ],
)
def test_a_paused_group_stays_together_and_receives_nothing(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, client: str, strategy: str, protocol: str
) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path) as crew:
        crew.produce()
        for name in "abc":
            crew.start(name, client, strategy=strategy, protocol=protocol)
        crew.wait_for_members(*"abc")
        crew.wait_for_more()
        crew.set_paused(True)
        wait_until_paused(crew, *"abc")
        consumed, rebalances = len(crew.history().consumed), broker.metric(REBALANCES)
        wait_for_more_to_read(crew)
        assert broker.metric(REBALANCES) == rebalances
        assert len(crew.history().consumed) == consumed
        assert broker.metric("penstock_groups_paused") == 1
        # Somebody new gets nothing either.
        crew.start("d", client, strategy=strategy, protocol=protocol)
        crew.wait_for_members(*"abcd")
        wait_for_more_to_read(crew)
        assert len(crew.history().consumed) == consumed
        crew.set_paused(False)
        crew.wait_for_more()
        crew.wait_for_members(*"abcd")
        crew.finish()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pause_survives_a_crash_of_the_broker(
    new_broker: BrokerFactory, topic: str, tmp_path: Path, protocol: str
) -> None:
    broker = new_broker(SETTINGS)
    with Crew(broker, topic, tmp_path) as crew:
        crew.produce()
        for name in "ab":
            crew.start(name, protocol=protocol)
        crew.wait_for_members(*"ab")
        crew.wait_for_more()
        # Before the members have come together, and after.
        crew.set_paused(True)
        broker.kill()
        broker.start()
        wait_until_paused(crew, *"ab")
        consumed = len(crew.history().consumed)
        broker.kill()
        broker.start()
        crew.wait_for_members(*"ab")
        wait_for_more_to_read(crew)
        assert len(crew.history().consumed) == consumed
        # The end of a pause is not forgotten either.
        crew.set_paused(False)
        broker.kill()
        broker.start()
        crew.wait_for_more()
        crew.finish()


class TestTopics:
    """One topic of two, and settings as administrators see them."""

    @pytest.fixture
    def admin(self, broker: BrokerProcess) -> AdminClient:
        return AdminClient({"bootstrap.servers": broker.kafka})

    @pytest.fixture
    def topics(self, admin: AdminClient, topic: str) -> tuple[str, str]:
        names = (f"{topic}-a", f"{topic}-b")
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result()
        return names

    @pytest.fixture(params=["range", "cooperative-sticky"])
    def consumer(self, request: pytest.FixtureRequest, broker: BrokerProcess, topic: str) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.kafka,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": request.param,
            }
        )
        yield consumer
        consumer.close()

    def alter(self, admin: AdminClient, group: str, value: str, operation: AlterConfigOpType) -> None:
        change = ConfigEntry("penstock.paused.topics", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[change])
        (answer,) = admin.incremental_alter_configs([resource]).values()
        answer.result()

    def test_one_topic_is_paused(
        self, broker: BrokerProcess, admin: AdminClient, consumer: Consumer, topic: str, topics: tuple[str, str]
    ) -> None:
        first, second = topics
        found: dict[str, list[int]] = {first: [], second: []}

        def read() -> None:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                found[message.topic() or ""].append(place_of(message)[1])

        def has(*names: str) -> bool:
            read()
            return {place.topic for place in consumer.assignment()} == set(names)

        def has_read(name: str, count: int) -> bool:
            read()
            return len(found[name]) >= count

        consumer.subscribe([first, second])
        until(lambda: has(first, second), "the member has both topics")
        for name in topics:
            send(broker, name, [b"1", b"2"])
        until(lambda: has_read(first, 2) and has_read(second, 2), "both are read")
        self.alter(admin, topic, first, AlterConfigOpType.APPEND)
        until(lambda: has(second), "the member has one topic left")
        send(broker, first, [b"3"])
        send(broker, second, [b"3"])
        until(lambda: has_read(second, 3), "the other topic goes on")
        assert found[first] == [0, 1]
        self.alter(admin, topic, first, AlterConfigOpType.SUBTRACT)
        until(lambda: has(first, second), "the member has both topics")
        until(lambda: has_read(first, 3), "the topic goes on where it was")
        assert found == {first: [0, 1, 2], second: [0, 1, 2]}

    def test_a_group_is_paused_before_it_exists(
        self, broker: BrokerProcess, admin: AdminClient, consumer: Consumer, topic: str, topics: tuple[str, str]
    ) -> None:
        self.alter(admin, topic, ",".join(topics), AlterConfigOpType.APPEND)
        send(broker, topics[0], [b"1"])
        consumer.subscribe(list(topics))
        group = topic

        def is_in() -> bool:
            assert consumer.poll(0.05) is None
            described = admin.describe_consumer_groups([group])[group].result()
            return bool(described.state.name == "STABLE")

        until(is_in, "the member is in")
        assert consumer.assignment() == []
        self.alter(admin, topic, topics[0], AlterConfigOpType.SUBTRACT)
        message = until(lambda: consumer.poll(0.05), "what was paused is read")
        assert message is not None and (message.topic(), message.offset()) == (topics[0], 0)
        assert consumer.assignment() == [TopicPartition(topics[0], 0)]
