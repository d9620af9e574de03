"""Brokers keep what is not archived yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker_process import BrokerProcess
from support.confluent import consumer_of
from support.lake import archive_all, archiver_of, lake_values
from support.spark import send
from support.waiting import until

CHECK = {"log.retention_check_ms": 100}
SMALL = {"segment.bytes": "16384", "retention.bytes": "0"}


def first_offset(consumer: Consumer, topic: str) -> int:
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    return int(low)


def test_retention_waits_for_the_archive(new_broker: Callable[..., BrokerProcess], topic: str, tmp_path: Path) -> None:
    broker = new_broker(CHECK)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    plain = f"{topic}-plain"
    for made in admin.create_topics([NewTopic(name, 1, 1, config=SMALL) for name in (topic, plain)]).values():
        made.result(30)
    archiver = archiver_of(broker, tmp_path, topic)
    archiver.hold()
    values = [b"%04d" % number + bytes(1000) for number in range(100)]
    for name in (topic, plain):
        send(broker, name, values)
    consumer = consumer_of(broker)
    try:
        # The other topic shows that retention has been by.
        until(lambda: first_offset(consumer, plain) > 50, "retention deletes what nobody holds")
        assert first_offset(consumer, topic) == 0
        archive_all(archiver)
        until(lambda: first_offset(consumer, topic) > 50, "retention deletes what is archived")
    finally:
        consumer.close()
    assert lake_values(tmp_path) == values
