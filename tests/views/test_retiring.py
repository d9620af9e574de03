"""A retired partition is kept for the groups of its topic's views too, for as long as they would be shown something."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from conftest import BrokerFactory
from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.viewing import Order, create, send
from support.waiting import PATIENCE_S, until


def put(admin: AdminClient, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    consumer = consumer_of(broker, **{"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 1, offset)], asynchronous=False)
    consumer.close()


def test_it_waits_for_the_readers_of_a_view_that_would_be_shown_something(new_broker: BrokerFactory) -> None:
    broker = new_broker({"log.retention_check_ms": 50})
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    create(admin, "orders", "payments", "a", 2)
    send(broker, "orders", [Order(b"1", "b", 1)], [Order(b"2", "a", 1)], [Order(b"3", "b", 1)], [Order(b"4", "b", 1)])
    commit(broker, "of the base", "orders", 4)
    commit(broker, "of the view", "payments", 1)
    put(admin, "orders", penstock_partitions_retired="1:0", retention_ms="1")
    consumer = consumer_of(broker)

    def starts() -> list[int]:
        return [
            consumer.get_watermark_offsets(TopicPartition(name, 1), PATIENCE_S)[0] for name in ("orders", "payments")
        ]

    until(lambda: starts() == [1, 1], "retention of what everybody has read")
    assert len(admin.list_topics(timeout=PATIENCE_S).topics["payments"].partitions) == 2
    # Behind the second record there is nothing that the view shows.
    commit(broker, "of the view", "payments", 2)
    consumer.close()
    for name in ("orders", "payments"):
        until(
            lambda name=name: len(admin.list_topics(timeout=PATIENCE_S).topics[name].partitions) == 1,
            f"the partition of {name} going",
        )
